"""What the libraries below torch must be told so that a row's bits do not depend on its neighbours.

Owns the variables; must not know who sets them: they count only before torch computes anything.
Left to themselves both libraries choose another kernel, and with it another order of additions,
by the number of rows: oneDNN where the CPU has AMX, MKL with AVX-512. Others are unaffected.
Source: oneDNN, "CPU Dispatcher Control"; oneMKL, "Conditional Numerical Reproducibility".
"""

from typing import Final

ROW_INVARIANT_ENVIRON: Final = {
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",  # the highest without AMX
    "MKL_CBWR": "AVX2,STRICT",
}
