"""Checks that every method, family, rule and world passes, for authors of new ones.

    from logel.contract.family import check_family
    check_family(MyFamily(...), observations)

Each check raises an AssertionError that says what is wrong.
"""
