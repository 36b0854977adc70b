"""Environments, policies and the loop that drives them: experience in the making."""

from importlib.util import find_spec

from rlx.errors import MissingExtraError

if find_spec("gymnasium") is None:
    raise MissingExtraError("collecting needs gymnasium, which is not installed", hint="pip install 'rlx[gym]'")
