"""Recorded rates, delays and distributions: what a right file means, and what a wrong one says."""

from __future__ import annotations

import contextlib
import doctest
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import units
from testbed.traces import lines
from testbed.traces.lines import MAX_FILE_BYTES, Scale, TraceError, text_of
from testbed.traces.mahimahi import read_mahimahi
from testbed.traces.series import Columns, date_problem, read_csv, read_steps
from testbed.traces.tables import read_table
from testbed.units import plain_number

MEGABITS = Scale(dimension=units.RATE, unit="Mbit/s", most="10 Tbit/s")
PINGS = Scale(dimension=units.TIME, unit="ms", most="60 s", halved=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def refused(caught: pytest.ExceptionInfo[TraceError], file: Path) -> str:
    """The message behind the name of the file, such as ``3: not a number``."""
    return str(caught.value).removeprefix(f"{file}:").strip()


# --- mahimahi ---------------------------------------------------------------------------------------------------------


def test_a_single_one_is_a_packet_per_millisecond(file: Path) -> None:
    file.write_text("1\n")
    trace = read_mahimahi(file)

    assert (trace.name, trace.at_s, trace.period_s) == ("file", (0.001,), 0.001)
    assert trace.mean_bps == 8 * 1504 * 1000


def test_several_chances_may_share_a_millisecond_and_the_last_one_is_the_period(file: Path) -> None:
    file.write_text("0\n0\n5\n5\n5\n20\n")

    assert read_mahimahi(file).at_s == (0.0, 0.0, 0.005, 0.005, 0.005, 0.020)
    assert read_mahimahi(file).period_s == 0.020


def test_windows_line_ends_and_a_missing_last_one_change_nothing(file: Path) -> None:
    file.write_bytes(b"1\r\n2")

    assert read_mahimahi(file).at_s == (0.001, 0.002)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; it needs one time in milliseconds a line"),
        ("0\n0\n", "2: the last time is 0 ms, but it is the period of the trace"),
        ("1\n5\n4\n", "3: 4 ms comes after 5 ms: times must not decrease"),
        ("1\n\n2\n", "2: expected a time in whole milliseconds, found ''"),
        ("-1\n", "1: expected a time in whole milliseconds, found '-1'"),
        ("1.5\n", "1: expected a time in whole milliseconds, found '1.5'"),
        ("1_000\n", "1: expected a time in whole milliseconds, found '1_000'"),
        ("٣\n", "1: expected a time in whole milliseconds, found '٣'"),
        ("9" * 5000, f"1: expected a time in whole milliseconds, found '{'9' * 40}...'"),
    ],
)
def test_a_wrong_mahimahi_file_is_refused_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(TraceError) as caught:
        read_mahimahi(file)

    assert refused(caught, file) == message


# --- time and value ---------------------------------------------------------------------------------------------------


def test_a_line_of_a_series_holds_since_the_line_before_and_the_first_starts_the_clock(file: Path) -> None:
    file.write_text("# s Mbit/s\n10.0\t99\n11.0\t2\n\n14.0\t4  # after a gap\n")
    steps = read_steps(file, MEGABITS)

    assert steps.ends_s == (1.0, 4.0)
    assert steps.values == (2e6, 4e6)
    assert steps.mean == (1 * 2e6 + 3 * 4e6) / 4


def test_a_line_that_lasts_no_time_is_left_out(file: Path) -> None:
    file.write_text("0 1\n0 2\n1 3\n1 4\n2 5\n")

    assert read_steps(file, MEGABITS).values == (3e6, 5e6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "fewer than two lines; the first only starts the clock"),
        ("0 1\n", "fewer than two lines; the first only starts the clock"),
        ("0 1\n0 1\n", "all rows have the same time, so nothing lasts"),
        ("0 1\n1\n", "2: expected a time in seconds and a value, found '1'"),
        ("0 1\n1,5\n", "2: expected a time in seconds and a value, found '1,5'"),
        ("0 1\nx 5\n", "2: 'x' is not a time in seconds"),
        ("0 1\n1 nan\n", "2: 'nan' is not a number"),
        ("0 1\n1 -1\n", "2: '-1' is negative; a rate is zero or more"),
        ("0 1\n1 1e9\n", "2: '1e9' Mbit/s is too large: at most 10 Tbit/s"),
        (
            "0 1\n1e12 1\n",
            "the trace lasts 1e+12 s; from 1 ms to 366 days can be played; is the unit of its times right?",
        ),
        (
            "2 1\n1 1\n",
            "2: '1' is earlier than the line before: times must not decrease; "
            "where a file holds several recordings, split it",
        ),
    ],
)
def test_a_wrong_series_is_refused_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_steps(file, MEGABITS)

    assert refused(caught, file) == message


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_a_sample_holds_until_the_next_and_the_last_as_long_as_the_one_before(file: Path) -> None:
    file.write_text("t,rate,else\n100,1,\n101,2,x\n104,3,y\n")
    steps = read_csv(file, Columns(value="rate", time="t", time_unit_s=1.0), MEGABITS)

    assert steps.ends_s == (1.0, 4.0, 7.0)
    assert steps.values == (1e6, 2e6, 3e6)


def test_of_several_samples_at_one_time_the_last_holds(file: Path) -> None:
    file.write_text("t,rate\n0,1\n0,2\n1000,3\n1000,4\n")
    steps = read_csv(file, Columns(value="rate", time="t", time_unit_s=0.001), MEGABITS)

    assert (steps.ends_s, steps.values) == ((1.0, 2.0), (2e6, 4e6))


def test_dates_are_read_as_they_are_written_across_midnight_and_with_parts_of_seconds(file: Path) -> None:
    file.write_text("when,rate\n2026-12-31 23:59:59.5 CDT,1\n2027-01-01 00:00:01.0 CDT,2\n")
    steps = read_csv(file, Columns(value="rate", time="when", time_format="%Y-%m-%d %H:%M:%S.%f CDT"), MEGABITS)

    assert steps.ends_s == (1.5, 3.0)


def test_rows_without_a_time_follow_each_other_at_equal_steps(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfrtt_ms,carrier\r\n40.0,A\r\n20.0,B\r\n")
    steps = read_csv(file, Columns(value="rtt_ms", every_s=0.5), PINGS)

    assert (steps.ends_s, steps.values) == ((0.5, 1.0), (0.020, 0.010))


def test_missing_values_are_held_only_where_that_is_asked_for(file: Path) -> None:
    file.write_text("t,ping\n0,-\n1,40\n2,\n3,60\n")
    columns = Columns(value="ping", time="t", time_unit_s=1.0, hold_missing=True)

    assert read_csv(file, columns, PINGS).values == (0.020, 0.020, 0.020, 0.030)
    with pytest.raises(TraceError, match=r"file:2: no value in column 'ping'; write 'missing: hold' to keep"):
        read_csv(file, Columns(value="ping", time="t", time_unit_s=1.0), PINGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty; its first line should name the columns"),
        ("t,rat\n", "1: no column 'rate'; did you mean 'rat'?"),
        ("a,b\n", "1: no column 'rate'; it has 'a', 'b'"),
        ("t,rate,rate\n", "1: two columns are called 'rate'"),
        ("rate\n1\n", "1: no column 't'; it has 'rate'"),
        ("t,rate\n0,1\n1\n", "3: 1 fields; the first line names 2 columns"),
        ("t,rate\n0,1\nx,1\n", "3: 'x' in column 't' is not a number"),
        ("t,rate\n0,x\n", "2: 'x' is not a number"),
        ("t,rate\n0,1\n", "fewer than two rows; a row holds until the next one"),
        ("t,rate\n0,1\n0,1\n", "all rows have the same time, so nothing lasts"),
        ('t,rate\n0,"1\n', "2: not CSV: unexpected end of data"),
        (
            "t,rate\n5,1\n4,1\n",
            "3: '4' is earlier than the line before: times must not decrease; "
            "where a file holds several recordings, split it, or write 'every' for 'time'",
        ),
    ],
)
def test_a_wrong_csv_file_is_refused_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_csv(file, Columns(value="rate", time="t", time_unit_s=1.0), MEGABITS)

    assert refused(caught, file) == message


def test_a_column_without_any_value_is_refused_even_if_missing_ones_are_held(file: Path) -> None:
    file.write_text("ping\n-\n-\n")
    with pytest.raises(TraceError, match="no value at all in column 'ping'"):
        read_csv(file, Columns(value="ping", every_s=1.0, hold_missing=True), PINGS)


def test_a_date_that_looks_different_names_the_format(file: Path) -> None:
    file.write_text("when,rate\n2026-01-01,1\n01.02.2026,1\n")
    with pytest.raises(TraceError, match=r"file:3: '01\.02\.2026' in column 'when' is not written as '%Y-%m-%d'"):
        read_csv(file, Columns(value="rate", time="when", time_format="%Y-%m-%d"), MEGABITS)


def test_a_format_of_dates_must_mean_the_same_on_every_machine() -> None:
    assert date_problem("%Y.%m.%d_%H.%M.%S") == date_problem("100%% %H:%M") == ""
    assert date_problem("%H:%M %Z") == (
        "'%Z' depends on the machine; write what stands in the file instead, such as 'UTC'"
    )
    assert "bad directive" in date_problem("%Q")
    assert "stray %" in date_problem("%H:%")
    assert date_problem("%H %H") == "a part of the date is asked for twice"
    assert date_problem("") == "no part of a date is asked for"


# --- distributions ----------------------------------------------------------------------------------------------------


def test_a_table_is_kept_ascending_and_named_after_its_file(tmp_path: Path) -> None:
    (tmp_path / "tail.dist").write_text("# comment\n 8192 -8192\n0 # here too\n")
    shape = read_table(tmp_path / "tail.dist")

    assert (shape.name, shape.table) == ("tail", (-8192, 0, 8192))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# nothing\n", "no entry in this table"),
        ("0 0\n0\n", "every entry is 0, so there is no jitter"),
        ("1\n2 x\n", "2: expected whole numbers (8192 is one deviation), found 'x'"),
        ("1\n32768\n", "2: 32768 is out of range: -32768 to 32767, 8192 is one deviation"),
        (
            "211.6\n",
            "1: expected whole numbers (8192 is one deviation), found '211.6'; "
            "iproute2's maketable makes a table of measured delays",
        ),
        ("1 2 3 4\n" * 4097, "4097: more than 16384 entries"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_table(file)

    assert refused(caught, file) == message


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_missing_file_names_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "lte.down").touch()
    with pytest.raises(TraceError, match=r"lte\.dwon: no such file; did you mean 'lte\.down'\?"):
        text_of(tmp_path / "lte.dwon")


def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "this is a directory; name a file in it"),
        (Path("a\0b"), "cannot be read"),
        (tmp_path / ("x" * 300), "cannot be read: File name too long"),
    ):
        with pytest.raises(TraceError) as caught:
            text_of(path)
        assert reason in str(caught.value)


def test_a_file_beyond_the_limit_is_refused_without_being_read_to_its_end(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(100 * MAX_FILE_BYTES)  # a hole: it takes no space
    with pytest.raises(TraceError, match="larger than 16 MiB"):
        text_of(file)


def test_more_rows_than_the_limit_are_refused_whatever_the_format(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_ROWS", 3)
    monkeypatch.setattr("testbed.traces.series.MAX_ROWS", 3)
    file.write_text("1\n2\n3\n4\n")
    with pytest.raises(TraceError, match="file:4: more than 3 rows; cut the file"):
        read_mahimahi(file)
    file.write_text("rate\n1\n2\n3\n4\n")
    with pytest.raises(TraceError, match="file:5: more than 3 rows; cut the file"):
        read_csv(file, Columns(value="rate", every_s=1.0), MEGABITS)


def test_a_compressed_file_is_refused_with_its_line(file: Path) -> None:
    file.write_bytes(b"1\n2\n\x1f\x8b\x08")
    with pytest.raises(TraceError, match=r"file:3: not UTF-8 text \(byte 0x8b\); is it compressed\?"):
        read_mahimahi(file)


@given(text=st.text(alphabet="0123456789.,-+eE \n\t#xnaif_", max_size=60))
def test_any_text_is_read_or_refused_and_never_breaks_a_reader(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any"
    file.write_text(text)
    readers = (
        read_mahimahi,
        read_table,
        lambda path: read_steps(path, MEGABITS),
        lambda path: read_csv(path, Columns(value="", every_s=1.0), MEGABITS),
    )
    for read in readers:
        with contextlib.suppress(TraceError):
            read(file)


@given(st.floats(0, 1e12))
def test_every_number_that_python_writes_is_one_to_the_readers(value: float) -> None:
    assert plain_number(repr(value)) == value


def test_the_examples_of_the_modules_hold() -> None:
    assert doctest.testmod(lines).failed == 0
