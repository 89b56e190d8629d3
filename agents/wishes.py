"""What requests would like to have loaded ahead: each names experts in its order, and requests take turns.

>>> wishes = Wishes()
>>> wishes.put(1, [(0, 3, "full"), (0, 5, "full")])
>>> wishes.put(2, [(4, 0, "full")])
>>> [wishes.take(lambda key: False) for _ in range(4)]
[(0, 3, 'full'), (4, 0, 'full'), (0, 5, 'full'), None]
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable

Key = tuple[int, int, str]  # layer, expert, precision


class Wishes:
    """The wishes of all requests that are not granted yet."""

    def __init__(self) -> None:
        self._of: OrderedDict[int, deque[Key]] = OrderedDict()  # by request, whose turn is next first

    def put(self, request: int, keys: Iterable[Key]) -> None:
        """These, the most wanted first, in the place of what the request has wished for before."""
        self._of.pop(request, None)
        wanted = deque(keys)
        if wanted:
            self._of[request] = wanted

    def take(self, granted: Callable[[Key], bool]) -> Key | None:
        """The next wish that is not ``granted`` without us; it is forgotten with that."""
        while self._of:
            request, keys = self._of.popitem(last=False)
            while keys:
                key = keys.popleft()
                if granted(key):
                    continue
                if keys:
                    self._of[request] = keys  # at the end: the others come first
                return key
        return None

    def clear(self) -> None:
        """Forget all of them."""
        self._of.clear()

    def __bool__(self) -> bool:
        """Whether any is left."""
        return bool(self._of)
