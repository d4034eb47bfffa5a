# Images with proxfield, its kernels compiled. How to use them: README.md, section Install.
#
#   docker build --tag proxfield .
#   docker build --tag proxfield:cuda --build-arg VARIANT=cuda .
#
# PYTHON      version of Python
# VARIANT     cpu, or cuda: adds torch and Triton
# EXTRAS      extras of the package to install
# CPU_TARGET  processors to compile for, as LLVM names them. x86-64-v3 is any x86 processor with AVX2
#             (since 2013); "generic" runs on every one, also on ARM, but more slowly
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG VARIANT=cpu
ARG EXTRAS=images,plot
ARG CPU_TARGET=x86-64-v3
# without NUMBA_CPU_FEATURES numba would compile for the processor of the machine that builds the image
ENV NUMBA_CPU_NAME=${CPU_TARGET} \
    NUMBA_CPU_FEATURES="" \
    PROXFIELD_CACHE_DIR=/opt/proxfield \
    TRITON_CACHE_DIR=/opt/proxfield/triton \
    MPLCONFIGDIR=/opt/proxfield/matplotlib \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1
# Triton compiles a small C program when it first starts
# hadolint ignore=DL3008
RUN if [ "$VARIANT" = cuda ]; then \
      apt-get update && \
      apt-get install --yes --no-install-recommends gcc libc6-dev && \
      rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=build /wheels /wheels
# Layers of images keep times of files in whole seconds, and a kernel in the cache belongs to the very
# time of its source: hence the same time for all sources, before anything is compiled. The folder is
# open to all users of the container, for those who run it as "--user $(id -u)".
RUN if [ "$VARIANT" = cuda ]; then EXTRAS="$EXTRAS,gpu"; fi && \
    python -m pip install --no-cache-dir "$(echo /wheels/*.whl)[$EXTRAS]" && \
    rm -r /wheels && \
    package=$(python -c "import importlib.util as u; print(u.find_spec('proxfield').submodule_search_locations[0])") && \
    find "$package" -name "*.py" -exec touch --date=2020-01-01T00:00:00Z {} + && \
    python -m compileall -q "$package" && \
    useradd --create-home --uid 1000 proxfield && \
    proxfield warmup && \
    mkdir -p "$TRITON_CACHE_DIR" "$MPLCONFIGDIR" && \
    chmod -R a+rwX /opt/proxfield
USER 1000
WORKDIR /data
ENTRYPOINT ["proxfield"]
CMD ["--help"]
