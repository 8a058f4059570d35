"""Secrets are recognised by the names of their options, in URLs and in texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import SpecError
from anabranch.settings.secrets import HIDDEN, from_environment, is_secret, without_secrets

SECRET = "Tr0ub4dor+3"


@pytest.mark.parametrize(
    "text",
    [
        "password={}",
        "jdbc:postgresql://h/db?user=me&password={}&ssl=true",
        "jdbc:postgresql://me:{}@h:5432/db",
        "fs.s3a.secret.key={}",
        'option("accessToken", token = "{}")',
        '{{"sasl.jaas.config": "{}"}}',
        "Authorization: Bearer {}",
        "PWD='{}';",
        "api-key: {}",
        'said \\"password\\": \\"{}\\"',
    ],
)
def test_a_secret_is_taken_out_of_a_text(text: str) -> None:
    shown = without_secrets(text.format(SECRET))
    assert SECRET not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "relation 'a' has ts, k, v",
        "token ⟨2, 3|1, 4⟩",
        "key column 'k' is not in the SELECT list",
        "s3://bucket/folder",
        "batch 12: 5 rows",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert without_secrets(text) == text


@given(st.text())
def test_any_text_can_be_filtered_for_secrets(text: str) -> None:
    shown = without_secrets(text)
    assert without_secrets(shown) == shown or HIDDEN in shown


def test_options_are_hidden_by_name() -> None:
    assert is_secret("password")
    assert is_secret("spark.hadoop.fs.s3a.secret.key")
    assert not is_secret("keyColumns")


def test_a_spec_takes_secrets_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    monkeypatch.delenv("NOT_THERE", raising=False)
    given = (("password", "${DB_PASSWORD}"), ("url", "jdbc:x://me:${DB_PASSWORD}@h"), ("plain", "$5 ${ } ${a-b}"))
    assert from_environment(given) == {
        "password": SECRET,
        "url": f"jdbc:x://me:{SECRET}@h",
        "plain": "$5 ${ } ${a-b}",
    }
    with pytest.raises(SpecError, match="option 'password' needs the environment variable 'NOT_THERE'"):
        from_environment((("password", "${NOT_THERE}"),))
