"""Rules that hold at many places: one test tries all of them, and lists every place where the rule is broken."""

import functools
import inspect

import pytest


def try_all(check, places):
    """Call `check` with the values of each place, {its name: values}, and raise one error that names all that fail.

    A place that skips is passed over.
    """
    failed = {}
    for name, values in places.items():
        try:
            check(*values)
        except pytest.skip.Exception:
            continue
        except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:
            if "Timeout" in str(error):  # pytest-timeout gives a test time once
                raise
            error.add_note(f"at {name}")
            failed[name] = error
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {len(places)} places: {', '.join(failed)}", [*failed.values()][:20])


def every(names, places, ids=str):
    """Parametrize a test as `pytest.mark.parametrize` does, in one item: for rules that take milliseconds at a place.

    All places share the fixtures of that item.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    places = [*places]

    def decorate(test):
        @functools.wraps(test)
        def of_all(*given, **fixtures):
            words = map(ids, places) if callable(ids) else ids
            named = {f"{n}: {word:.80}": [place] for n, (place, word) in enumerate(zip(places, words, strict=True))}

            def check(place):
                values = place if len(arguments) > 1 else [place]
                test(*given, **fixtures, **dict(zip(arguments, values, strict=True)))

            try_all(check, named)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in arguments]
        of_all.__signature__ = signature.replace(parameters=left)
        return of_all

    return decorate
