# The self-hosted server: HTTP and WebSocket on 8000, gRPC on 50051. See docs/docker.md.
#
#   docker build -t orpheus-serving .                                    CPU, with the demo voice
#   docker build -t orpheus-serving:gpu --build-arg VARIANT=gpu .        NVIDIA GPU
#
#   TORCH_INDEX=URL   CPU only: the package index with the CPU build of torch; without it the usual index may send CUDA (several GB)

ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG VARIANT=cpu
ARG TORCH_INDEX=
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
WORKDIR /src
# What seldom changes comes first. The exact versions are those of the CPU tests; a GPU machine takes the CUDA build of torch.
COPY requirements/ requirements/
RUN case "$VARIANT" in \
      cpu) if [ -n "$TORCH_INDEX" ]; then \
             pip install -c requirements/constraints.txt --no-deps --index-url "$TORCH_INDEX" torch; \
           fi && \
           pip install -c requirements/constraints.txt -r requirements/cpu.txt -r requirements/server.txt ;; \
      gpu) pip install -r requirements/gpu.txt -r requirements/server.txt ;; \
      *)   echo "VARIANT: $VARIANT is neither cpu nor gpu" >&2; exit 1 ;; \
    esac
COPY pyproject.toml README.md ./
COPY packages/ packages/
RUN if [ "$VARIANT" = cpu ]; then pip install -c requirements/constraints.txt . ; else pip install . ; fi

FROM python:${PYTHON}-slim-bookworm AS run
ARG VARIANT=cpu
# torch.compile builds the codec's kernels on a GPU, with a C compiler.
# hadolint ignore=DL3008
RUN if [ "$VARIANT" = gpu ]; then \
      apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* ; \
    fi
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin orpheus
COPY --from=build /opt/venv /opt/venv
COPY data/demo_voice/ /opt/demo_voice/
# Other addresses than loopback want API keys: ORPHEUS_SERVER_API_KEYS, or ORPHEUS_SERVER_ALLOW_UNAUTHENTICATED=true behind a gateway.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ORPHEUS_SERVER_HOST=0.0.0.0 \
    ORPHEUS_SERVER_PORT=8000 \
    ORPHEUS_SERVER_GRPC_PORT=50051 \
    ORPHEUS_CHECKPOINT=/opt/demo_voice \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001
WORKDIR /home/orpheus
EXPOSE 8000 50051
STOPSIGNAL SIGTERM
# The start period is for a large checkpoint that is downloaded and compiled for.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"ORPHEUS_SERVER_PORT\"]}/health/ready', timeout=4)"]
ENTRYPOINT ["orpheus-serving"]
CMD ["serve"]
