"""Uses of private parts of other packages: one module per package.

Each hook is a function with its reason, and a test which fails if an upgrade breaks the hook or
removes the need for it. Code that uses only documented interfaces does not belong here.
"""
