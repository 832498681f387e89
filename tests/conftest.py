"""What every test shares: hypothesis without deadlines, since machines are shared and slow, and
triton's interpreter where there is no GPU (it must be asked for before a kernel is imported)."""

import os
from pathlib import Path

from hypothesis import settings

if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("hearth", deadline=None)
settings.load_profile("hearth")
