"""Which lines of a requirements file name what lies in a folder, and which files they include."""

import pytest

from longshore.activities.node.requirement_lines import INCLUDES, is_local, statements


@pytest.mark.parametrize(
    "line",
    [
        "-e .", "--editable=./lib", "-e git+https://h/x", ".", "./lib", "../lib", "/srv/lib",
        '"./lib"', "lib/", "libs/foo", "wheels/x-1.0-py3-none-any.whl", "file:x", "file:///srv/x",
        "git+file:///srv/x", "https:wheels/x.whl", "./my lib/x.whl", "${PROJECT_ROOT}/lib",
        "x-1.0-py3-none-any.whl", "x.whl ; python_version > '3'", "x.whl --hash=sha256:0",
        "x.whl[extra]", "x-1.0.tgz", "x.tar.bz2", "X.ZIP", "x.tar.gz  # of us",
        "x @ ./lib", "x@wheels/x.whl", "x @ wheels/x.whl", "x[y] @ ./lib", "x @ file:./lib",
        "x @ file:///srv/lib", "x @ ${PROJECT_ROOT}/x.whl", "x @ git+file:///srv/x",
        "--find-links ./wheels", "--find-links=wheels", "-f wheels", "-f\twheels", "-fwheels",
        '--find-links "wheels"', "--index-url ./simple", "-i /srv/simple",
        "--extra-index-url file:./simple", "--no-index --find-links wheels  # ours",
        "--no-binary x --find-links wheels", "--find-links file:///${PROJECT_ROOT}/wheels",
    ],
)  # fmt: skip
def test_a_file_or_folder_is_local(line: str) -> None:
    assert any(is_local(option, value) for option, value in statements(line))


@pytest.mark.parametrize(
    "line",
    [
        "", "  ", "# -e .", "numpy", "numpy  # ./lib", "numpy==2.1", "numpy ~= 2.1, < 3",
        "numpy (>=2)", "a.b_c-d[x, y]>=1; python_version < '3.12' and os_name == './x'",
        "numpy==2.1 --hash=sha256:0 --hash=sha256:1", "zipp", "ruamel.yaml", "torch @ https://h/t",
        "torch@https://h/t/torch-2-cp311-linux.whl#sha256=0", "https://h/x.tar.gz",
        "x @ git+ssh://git@h/x.git@v1", "git+https://${TOKEN}@h/x", "--no-index", "--pre",
        "--index-url https://h/simple", "-i https://${USER}:${TOKEN}@h/simple  # ours",
        "--extra-index-url='https://h/simple'", "-f file:///srv/wheels",
        "--no-binary :all:", "--only-binary=numpy", "-r more/all.txt", "-c ./limits.txt",
    ],
)  # fmt: skip
def test_a_package_of_an_index_or_a_url_is_not(line: str) -> None:
    assert not any(is_local(option, value) for option, value in statements(line))


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("-r more.txt", "more.txt"), ("-rmore.txt", "more.txt"), ("-c=more.txt", "more.txt"),
        ("  --requirement   my own.txt  # x", "my own.txt"), ("--constraint more.txt", "more.txt"),
        ("--no-index -r more.txt", "more.txt"),
    ],
)  # fmt: skip
def test_a_file_that_is_included_is_named(line: str, file: str) -> None:
    assert [value for option, value in statements(line) if option in INCLUDES] == [file]
