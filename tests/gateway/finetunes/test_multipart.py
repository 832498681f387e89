"""Forms of several parts: the same parts come out, however the bytes were cut."""

from collections.abc import Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InvalidRequest
from gateway.finetunes.multipart import (
    MAX_PART_HEADER_BYTES,
    MAX_PARTS,
    MultipartReader,
    PartBegun,
    PartEnded,
    read_boundary,
)

B = b"frontier"
HEAD = b'Content-Disposition: form-data; name="a"\r\n\r\n'


def read_parts(body: bytes, boundary: bytes, cuts: Sequence[int] = ()) -> list[tuple[str, bytes]]:
    """Names and contents of the parts of `body`, which comes cut at `cuts`."""
    reader, parts = MultipartReader(boundary), list[tuple[str, bytes]]()
    is_open = False
    ends = sorted({cut % (len(body) + 1) for cut in cuts} | {len(body)})
    for begin, end in zip([0, *ends], ends, strict=False):
        for event in reader.feed(body[begin:end]):
            if isinstance(event, PartBegun):
                assert not is_open
                parts.append((event.name, b""))
                is_open = True
            elif isinstance(event, PartEnded):
                assert is_open
                is_open = False
            else:
                assert is_open
                parts[-1] = (parts[-1][0], parts[-1][1] + event)
    assert reader.is_over == (not is_open and body.rstrip().endswith(b"--"))
    return parts


@settings(max_examples=300)
@given(
    st.binary(max_size=300) | st.text("\r\n-frontiex", max_size=300).map(str.encode),
    st.text(max_size=20),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_what_a_client_sends_comes_out_however_it_was_cut(
    content: bytes, text: str, cuts: list[int]
) -> None:
    request = httpx.Request(
        "POST", "http://x", data={"file_name": text}, files={"file": ("upload", content)}
    )
    boundary = read_boundary(request.headers["content-type"])
    parts = read_parts(request.read(), boundary, cuts)
    assert parts == [("file_name", text.encode()), ("file", content)]


@given(st.lists(st.integers(0, 200), max_size=10))
def test_contents_that_look_like_boundaries_are_contents(cuts: list[int]) -> None:
    content = b"\r\n--frontie\r\n--\r\n\r\n-frontier--\r\n--front"
    body = b"--" + B + b"\r\n" + HEAD + content + b"\r\n--" + B + b"--\r\nepilogue"
    parts = list[tuple[str, bytes]]()
    reader = MultipartReader(B)
    ends = sorted({cut % len(body) for cut in cuts} | {len(body)})
    for begin, end in zip([0, *ends], ends, strict=False):
        for event in reader.feed(body[begin:end]):
            if isinstance(event, PartBegun):
                parts.append((event.name, b""))
            elif isinstance(event, bytes):
                parts[-1] = (parts[-1][0], parts[-1][1] + event)
    assert reader.is_over
    assert parts == [("a", content)]


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition:form-data;name="a"\r\n\r\n',
        b"Content-Disposition: form-data; name=a; filename=x\r\n\r\n",
        b'CONTENT-DISPOSITION: Form-Data; filename="name=b"; name="a"\r\nX: y\r\n\r\n',
        b'Content-Type: x/y\r\nContent-Disposition: form-data; name="a"\r\n\r\n',
        b'Content-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: binary\r\n\r\n',
    ],
)
def test_headers_of_any_spelling_name_the_part(head: bytes) -> None:
    body = b"preamble\r\n--" + B + b" \t\r\n" + head + b"x\r\n--" + B + b"--"
    assert read_parts(body, B) == [("a", b"x")]


@pytest.mark.parametrize(
    "body",
    [
        b"--" + B + b"\r\n\r\nx\r\n--" + B + b"--",
        b"--" + B + b"\r\nContent-Disposition: form-data\r\n\r\nx\r\n--" + B + b"--",
        b"--" + B + b'\r\nContent-Disposition: attachment; name="a"\r\n\r\nx',
        b"--" + B + b"more\r\n" + HEAD,
        b"--" + B + b"\r\n" + b"a" * (MAX_PART_HEADER_BYTES + 100),
        b"--" + B + b" " * 5000,
        b"x" * 5000,
        (b"--" + B + b"\r\n" + HEAD + b"x\r\n") * (MAX_PARTS + 1),
        b"--" + B + b"\r\nContent-Transfer-Encoding: base64\r\n" + HEAD + b"eA==",
    ],
)
def test_what_is_no_such_form_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_parts(body, B)
    with pytest.raises(InvalidRequest):
        read_parts(body, B, list(range(0, len(body), 7)))


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data;BOUNDARY="a b"', b"a b"),
        ("multipart/form-data; charset=utf-8; boundary=----x ; y=z", b"----x"),
    ],
)
def test_a_boundary_is_found(content_type: str, boundary: bytes) -> None:
    assert read_boundary(content_type) == boundary


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        "multipart/mixed; boundary=a",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "a" * 71,
        "multipart/form-data; xboundary=a",
        "text/plain; multipart/form-data; boundary=a",
    ],
)
def test_a_type_without_one_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest):
        read_boundary(content_type)
