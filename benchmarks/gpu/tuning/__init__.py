"""Launch settings of the kernels that matter most, tried one beside the other on this GPU.

`python -m benchmarks.gpu.tuning decode prefill products`. Read next: `__main__`, `trial`.
"""
