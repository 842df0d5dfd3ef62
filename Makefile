# PostgreSQL extension "idempotency".  "make help" lists what there is to make.

# These goals are scripts that see to their own PostgreSQL.  PGXS stays out of
# them: it needs a pg_config, and has a "check" of its own.
SCRIPT_GOALS = help demo saga check check-clients check-saga saga-selftest check-citus check-citus-selftest check-plproxy check-managed check-monitoring check-recipes bench bench-quick bench-huge lint coverage memcheck soak oom mutation check-injection chaos chaos-selftest history history-selftest fuzz model check-all \
	dist deb rpm image check-packages check-fresh release-check

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
	@echo '  make saga COMPARE=1   the same, and once more with tables and locks by hand: one table of both'
	@echo '  make check            run every test'
	@echo '  make check-all        on PostgreSQL 15, 17, 18 and 19, and pg_upgrade (root, or sudo)'
	@echo '  make check-clients    test the packages for Node.js, Python and Go (ONLY=pattern: some parts)'
	@echo '  make check-citus      a distributed store, on a coordinator and three workers'
	@echo '  make check-managed    test the functions without C, for managed databases'
	@echo '  make check-monitoring test the files for Prometheus and Grafana'
	@echo '  make check-recipes    run the client code of docs/ in ten more languages (ONLY=pattern)'
	@echo '  make check-saga       test the example of make saga, each program killed at each message (ALL=1: not a sample)'
	@echo '  make fuzz             call it with anything (FUZZ_CALLS=100000, FUZZ_SEED=...)'
	@echo '  make model            check the model of the protocol (needs no server)'
	@echo '  make bench            measure it (bench-quick: in a hurry)'
	@echo '  make bench-huge       stores of 50 and 100 million records (ROWS=...)'
	@echo 'Packages, in dist/:'
	@echo '  make dist             the archives of a release, from the last commit: PGXN takes the zip'
	@echo '  make deb              for Debian: PostgreSQL 15, 17, 18 and 19 (root, or sudo)'
	@echo '  make rpm              for the PostgreSQL of this machine (NODEPS=1: not installed by rpm)'
	@echo '  make image            a container image with PostgreSQL 17 (root, or sudo)'
	@echo '  make check-packages   build, install and use all of them (ONLY=debian: some)'
	@echo '  make check-fresh      make demo and make check on fresh machines (root, or sudo)'
	@echo '  make release-check    what has to be true before a release (PUBLISH=1: and to publish it)'
	@echo 'What the tests are worth, and what they do not see:'
	@echo '  make check-injection  fault points by the means of an 18 built for that'
	@echo '  make chaos            clients, crashes and failovers for CHAOS_MINUTES=5'
	@echo '  make history          random operations on lists, held against their isolation levels'
	@echo '  make saga-selftest    would the tests of the saga notice that a guard is missing?'
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

check-citus:
	@test/citus/run

check-plproxy:
	@test/plproxy/run

check-citus-selftest:
	@test/citus/selftest

check-managed:
	@test/managed/run

check-monitoring:
	@monitoring/test

check-recipes:
	@clients/recipes/check $${ONLY:+"$$ONLY"}

check-saga:
	@examples/order-saga/check $${ALL:+--all}

saga-selftest:
	@examples/order-saga/selftest

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

bench-huge:
	@bench/run --only huge growth $${ROWS:+--rows "$$ROWS"}

lint coverage memcheck soak:
	@test/$@

oom:
	@OOM_FULL=1 PROVE_TESTS=test/t/060_out_of_memory.pl test/check tap

mutation:
	@test/mutation/run $${ONLY:+"$$ONLY"}

dist deb:
	@packaging/$@

rpm: dist
	@packaging/rpm/build $${NODEPS:+--nodeps}

image:
	@packaging/image/build

# ONLY is a list of words
check-packages:
	@test/packages/run $$ONLY

check-fresh:
	@test/fresh/run

release-check:
	@test/release $${PUBLISH:+--publish}

else

# Where this file is.  It is not the current directory in a build out of tree:
# make -f tree/Makefile, with or without VPATH=tree.
tree := $(or $(VPATH),$(patsubst %/,%,$(dir $(firstword $(MAKEFILE_LIST)))))
# $(call files,DIRECTORY/,.ENDING): the names of these files, without both.
files = $(patsubst $(tree)/$(1)%$(2),%,$(sort $(wildcard $(tree)/$(1)*$(2))))

EXTENSION = idempotency
MODULE_big = idempotency
PGFILEDESC = "idempotency - exactly-once business transactions"
OBJS := $(patsubst $(tree)/%.c,%.o,$(sort $(wildcard $(tree)/src/*.c $(tree)/src/*/*.c)))
DATA := $(patsubst %,idempotency--%.sql,$(call files,idempotency--,.sql))
ifeq (,$(and $(OBJS),$(DATA)))
$(error no source found in $(tree)/src, or no script beside it)
endif

# make would link objects that it finds there, whatever server they are for.
ifneq ($(CURDIR),$(realpath $(tree)))
ifneq (,$(wildcard $(tree)/src/*.o $(tree)/src/*/*.o $(tree)/*.so))
$(error $(tree) has a build of its own: please "make clean" there first)
endif
endif

# One after the other in this order; "setup" creates the extension.
TESTS := $(call files,sql/,.sql)
REGRESS = $(filter setup,$(TESTS)) $(filter-out setup,$(TESTS))
ISOLATION := $(call files,test/isolation/specs/,.spec)
ISOLATION_OPTS = --inputdir=$(tree)/test/isolation --load-extension=idempotency

# What -Wextra finds in PostgreSQL's own headers and conventions is silenced.
# Symbols are hidden: the server puts those of all extensions into one bag.
PG_CPPFLAGS = -I$(tree)/src
PG_CFLAGS = -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare \
	-Wno-missing-field-initializers $(if $(WERROR),-Werror) \
	$(if $(DESTDIR),-DIDEM_STAGED) $(EXTRA_CFLAGS)

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq (,$(PGXS))
$(error $(PG_CONFIG) not found: install the development files of your PostgreSQL (Debian: postgresql-server-dev-15) or say PG_CONFIG=/path/to/pg_config)
endif
# Debian's client has the makefiles and pg_regress, but no headers of the server,
# which only a build needs.
NO_BUILD = installcheck uninstall clean distclean list-regress list-isolation
BUILDS := $(filter-out $(NO_BUILD),$(or $(MAKECMDGOALS),all))
SERVER_HEADERS := $(wildcard $(shell $(PG_CONFIG) --includedir-server)/postgres.h)
ifeq (,$(and $(wildcard $(PGXS)),$(if $(BUILDS),$(SERVER_HEADERS),none)))
$(error no development files of that PostgreSQL: install them (Debian: postgresql-server-dev-15) or say PG_CONFIG=/path/to/pg_config)
endif
include $(PGXS)

# pg_config may be the client's, so its version says nothing of the server.
install: compare-releases
.PHONY: compare-releases
compare-releases:
	@headers=$$(sed -n 's/^#define PG_VERSION "\([^ "]*\).*/\1/p' "$$($(PG_CONFIG) --includedir-server)/pg_config.h"); \
	server=$$('$(bindir)/postgres' --version 2>/dev/null | sed 's/^[^)]*) \([^ ]*\).*/\1/'); \
	test "$${server:-$$headers}" = "$${headers:-$$server}" || \
		echo "idempotency: the server is PostgreSQL $$server, its headers are of $$headers: that works; to have one release, update both" >&2

# PGXS tracks no headers unless the server was built to, and makes no directory.
# Full names keep make from finding those of the tree.
BUILD_DIRECTORIES := $(addprefix $(CURDIR)/,$(sort $(patsubst %/,%,$(dir $(OBJS)))))
$(OBJS) $(OBJS:.o=.bc): $(wildcard $(tree)/src/*/*.h) | $(BUILD_DIRECTORIES)
$(BUILD_DIRECTORIES):
	mkdir -p $@

# What test/check has to run, so that the lists above are the only ones.
.PHONY: list-regress list-isolation
list-regress:
	@echo $(REGRESS)
list-isolation:
	@echo $(ISOLATION)

endif
