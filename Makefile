# PostgreSQL extension "idempotency".  "make help" lists what there is to make.

# These goals are scripts that see to their own PostgreSQL.  PGXS stays out of
# them: it needs a pg_config, and has a "check" of its own.
SCRIPT_GOALS = help demo saga check check-clients check-saga check-managed check-monitoring check-recipes bench bench-quick lint coverage memcheck soak oom mutation check-injection chaos chaos-selftest history history-selftest fuzz model check-all

ifneq (,$(filter $(SCRIPT_GOALS),$(MAKECMDGOALS)))

ifneq (,$(filter-out $(SCRIPT_GOALS),$(MAKECMDGOALS)))
$(error please make "$(filter $(SCRIPT_GOALS),$(MAKECMDGOALS))" apart from "$(filter-out $(SCRIPT_GOALS),$(MAKECMDGOALS))")
endif

.PHONY: $(SCRIPT_GOALS)

help:
	@echo 'With a PostgreSQL server and its pg_config (PG_CONFIG=...):'
	@echo '  make                  build the extension'
	@echo '  make install          install it into that server'
	@echo '  make installcheck     test it on that server, running'
	@echo '  make uninstall, clean'
	@echo 'On a private server, installed when missing (Debian), gone afterwards:'
	@echo '  make demo             see it at work (FILE=my.jsonl: with your own payments; BROKER=rabbitmq)'
	@echo '  make saga             four services, a broker and a shop, killed at random (MODE=choreographed, MINUTES, ORDERS, SEED, STAY=1)'
	@echo '  make check            run every test'
	@echo '  make check-all        on PostgreSQL 15, 17 and 18, and pg_upgrade (root, or sudo)'
	@echo '  make check-clients    test the packages for Node.js, Python and Go (ONLY=pattern: some parts)'
	@echo '  make check-managed    test the functions without C, for managed databases'
	@echo '  make check-monitoring test the files for Prometheus and Grafana'
	@echo '  make check-recipes    run the client code of docs/ in ten more languages (ONLY=pattern)'
	@echo '  make check-saga       test the example of make saga, each program killed at each message (ALL=1: not a sample)'
	@echo '  make fuzz             call it with anything (FUZZ_CALLS=100000, FUZZ_SEED=...)'
	@echo '  make model            check the model of the protocol (needs no server)'
	@echo '  make bench            measure it (bench-quick: in a hurry)'
	@echo 'What the tests are worth, and what they do not see:'
	@echo '  make check-injection  fault points by the means of an 18 built for that'
	@echo '  make chaos            clients, crashes and failovers for CHAOS_MINUTES=5'
	@echo '  make history          random operations on lists, held against their isolation levels'
	@echo '  make lint             clang-tidy, scan-build, shellcheck, flake8, eslint'
	@echo '  make coverage         which lines of src/ the tests reach'
	@echo '  make memcheck         regress and isolation under valgrind'
	@echo '  make oom              let every single allocation of every call fail'
	@echo '  make soak             a million operations in one session'
	@echo '  make mutation         take out guard after guard: do tests fail? (ONLY=name: one)'

demo:
	@demo/run $${FILE:+"$$FILE"} $${BROKER:+--broker "$$BROKER"}

saga:
	@examples/order-saga/run

check:
	@test/check

check-all:
	@test/check-all

check-clients:
	@clients/check $${ONLY:+"$$ONLY"}

check-managed:
	@test/managed/run

check-monitoring:
	@monitoring/test

check-recipes:
	@clients/recipes/check $${ONLY:+"$$ONLY"}

check-saga:
	@examples/order-saga/check $${ALL:+--all}

check-injection:
	@test/injection

chaos:
	@test/chaos/run

chaos-selftest:
	@test/chaos/selftest

history:
	@test/history/run

history-selftest:
	@test/history/selftest

fuzz:
	@test/fuzz/run

model:
	@test/model/run

bench:
	@bench/run

bench-quick:
	@bench/run --quick

lint coverage memcheck soak:
	@test/$@

oom:
	@OOM_FULL=1 PROVE_TESTS=test/t/060_out_of_memory.pl test/check tap

mutation:
	@test/mutation/run $${ONLY:+"$$ONLY"}

else

EXTENSION = idempotency
MODULE_big = idempotency
PGFILEDESC = "idempotency - exactly-once business transactions"
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
DATA = $(sort $(wildcard idempotency--*.sql))

# One after the other in this order; "setup" creates the extension.
TESTS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))
REGRESS = $(filter setup,$(TESTS)) $(filter-out setup,$(TESTS))
ISOLATION = $(patsubst test/isolation/specs/%.spec,%,$(sort $(wildcard test/isolation/specs/*.spec)))
ISOLATION_OPTS = --inputdir=test/isolation --load-extension=idempotency

# What -Wextra finds in PostgreSQL's own headers and conventions is silenced.
# Symbols are hidden: the server puts those of all extensions into one bag.
PG_CFLAGS = -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers $(if $(WERROR),-Werror) \
	$(if $(DESTDIR),-DIDEM_STAGED) $(EXTRA_CFLAGS)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq (,$(PGXS))
$(error $(PG_CONFIG) not found: install the development files of your PostgreSQL (Debian: postgresql-server-dev-15) or say PG_CONFIG=/path/to/pg_config)
endif
# Debian's client has the makefiles, but no headers of the server.
ifeq (,$(and $(wildcard $(PGXS)),$(wildcard $(shell $(PG_CONFIG) --includedir-server)/postgres.h)))
$(error no development files of that PostgreSQL: install them (Debian: postgresql-server-dev-15) or say PG_CONFIG=/path/to/pg_config)
endif
include $(PGXS)

# PGXS tracks no headers unless the server was built to.
$(OBJS) $(OBJS:.o=.bc): $(wildcard src/*.h)

# What test/check has to run, so that the lists above are the only ones.
.PHONY: list-regress list-isolation
list-regress:
	@echo $(REGRESS)
list-isolation:
	@echo $(ISOLATION)

endif
