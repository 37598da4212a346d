# `make` installs into .venv; then `make demo`, `make test`. Needs Python 3.11 or newer and nothing else.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Processes that run tests side by side.
JOBS ?= 2
SOURCES := $(wildcard src tests benchmarks examples notebooks docs/generate.py)
# Whether `java` is there and new enough.
HAS_JAVA := java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])'
# Whether SLURM's servers are there, and what makes network namespaces.
HAS_SLURM := (PATH="$$PATH:/usr/sbin:/sbin"; command -v slurmctld && command -v slurmd && command -v munged && \
	command -v sbatch && command -v ip) >/dev/null
# Whether a server of Docker is there, and what makes an image without a registry.
HAS_DOCKER := (PATH="$$PATH:/usr/sbin:/sbin"; command -v dockerd && command -v docker && command -v debootstrap) >/dev/null
BENCHMARKS := mop overhead shards hop planner startup stacks search etl ddp race spark ray

.DEFAULT_GOAL := install
.PHONY: install demo test test-stacks test-cluster test-ray test-servers test-image java slurm docker check bench docs clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed. Name one: make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	touch $@

demo: install
	$(BIN)/python -m examples.demo

# In the order of their names: the long ones (chaos, integration) come first, and small ones fill up.
test: check
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10

# The same promises with trials stacked: automatically, and by force.
test-stacks: install
	@for stack in auto 4; do echo "== stack: $$stack"; CEREBRO_TEST_STACK=$$stack $(BIN)/python -m pytest -q \
		tests/integration tests/chaos || exit 1; done

# On servers that the tests start themselves: Ray, Spark, stores, SLURM. They need Java 17 or newer.
# Those on Ray beside all others: most of the time they wait.
test-cluster: $(STAMP)-cluster java slurm
	@$(MAKE) --no-print-directory --keep-going --jobs 2 test-ray test-servers

test-ray: $(STAMP)-cluster
	$(BIN)/python -m pytest -v tests/cluster -m ray --durations=10 --ignore tests/cluster/test_image.py

test-servers: $(STAMP)-cluster
	$(BIN)/python -m pytest -v tests/cluster -m 'not ray' --durations=10 --ignore tests/cluster/test_image.py

# The container image, built and run, with all that it needs: some ten minutes.
test-image: $(STAMP)-cluster docker
	$(BIN)/python -m pytest -v tests/cluster/test_image.py

$(STAMP)-cluster: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[ray,spark,keras,s3,gs,hdfs]' \
		kubernetes-validate gcp-storage-emulator
	touch $@

# Installed where that can be done: by root on Debian and its kin.
java:
	@$(HAS_JAVA) || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
		for name in openjdk-17-jre-headless default-jre-headless; do DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends $$name && break; done; }; \
	$(HAS_JAVA) || { echo "Java 17 or newer is needed for Spark, and \`java\` is none or older. Install it and put it" \
		"on the PATH; on Debian, as root: apt-get install openjdk-17-jre-headless"; exit 1; }

# Tests on SLURM and in network namespaces are skipped where this cannot be done.
slurm:
	@$(HAS_SLURM) || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge iproute2; }; \
	$(HAS_SLURM) || echo "SLURM is not there, so its tests are skipped. Install it; on Debian, as root:" \
		"apt-get install slurm-wlm munge iproute2"

# So are those of the container image.
docker:
	@$(HAS_DOCKER) || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io debootstrap; }; \
	$(HAS_DOCKER) || echo "Docker is not there, so its tests are skipped. Install it; on Debian, as root:" \
		"apt-get install docker.io debootstrap"

check: install
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy --num-workers $(JOBS) $(SOURCES)

bench: $(STAMP)-cluster java
	@for name in $(BENCHMARKS); do echo "== benchmarks.$$name"; \
		$(BIN)/python -m benchmarks.$$name --json || exit 1; done

docs: install
	$(BIN)/python docs/generate.py

# Everything the other targets leave behind, except the environment.
clean:
	rm -rf build dist runs data demo htmlcov .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples docs -name __pycache__ -type d -exec rm -rf {} +
