"""What gives a link its physics: the pure model and the processes or kernels that apply it."""
