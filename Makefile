# PostgreSQL extension "idempotency".  "make help" lists what there is to make.

# Goals with a comment behind them are scripts that see to their own PostgreSQL.
# PGXS stays out of them: it needs a pg_config, and has a "check" of its own.
SCRIPT_GOALS := $(shell sed -n 's/^\([a-z-]*\):.* \#\# .*/\1/p' $(firstword $(MAKEFILE_LIST)))

ifneq (,$(filter $(SCRIPT_GOALS),$(MAKECMDGOALS)))

ifneq (,$(filter-out $(SCRIPT_GOALS),$(MAKECMDGOALS)))
$(error please make "$(filter $(SCRIPT_GOALS),$(MAKECMDGOALS))" apart from "$(filter-out $(SCRIPT_GOALS),$(MAKECMDGOALS))")
endif

.PHONY: $(SCRIPT_GOALS)

## With a PostgreSQL server and its pg_config (PG_CONFIG=...):
##   make                       build the extension
##   make install               install it into that server
##   make installcheck          test it on that server, running
##   make uninstall, clean
## Every day, on a private server, installed when missing (Debian), gone afterwards:
help: ## this list
	@awk -F ':.* ## ' '/^## / { print substr($$0, 4) } /^[a-z-]+:.* ## / { printf "  make %-22s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
check: ## run every test
	@test/check
lint: ## clang-tidy, scan-build, shellcheck, flake8, eslint: no finding
	@test/lint
check-all: ## every test on PostgreSQL 15, 16, 17, 18 and 19, and pg_upgrade (root, or sudo)
	@test/check-all

## See it at work:
demo: ## payments, with and without it (FILE=my.jsonl: your own)
	@demo/run $${FILE:+"$$FILE"}
saga: ## four services, a broker and a shop, killed at random (MODE=choreographed, MINUTES, ORDERS, SEED, STAY=1)
	@examples/order-saga/run

## Test one part:
check-clients: ## the packages for Node.js, Python, Go and Java (ONLY=pattern: some parts)
	@clients/check $${ONLY:+"$$ONLY"}
check-recipes: ## the client code of docs/ in other languages (ONLY=pattern; 800 MB of packages)
	@clients/recipes/check $${ONLY:+"$$ONLY"}
check-citus: ## a distributed store, on a coordinator and three workers (needs an installed Citus)
	@test/citus/run
check-plproxy: ## the functions for PL/Proxy of the guide on scaling out
	@test/plproxy/run
check-managed: ## the functions without C, for managed databases
	@test/managed/run
check-monitoring: ## the files for Prometheus and Grafana
	@monitoring/test
check-saga: ## the example of make saga, each program killed at each message (ALL=1: not a sample)
	@examples/order-saga/check $${ALL:+--all}
check-injection: ## fault points by the means of an 18 built for that
	@test/injection
model: ## the model of the protocol (needs no server)
	@test/model/run

## Look for what no test names:
fuzz: ## calls with any arguments (FUZZ_CALLS=100000, FUZZ_SEED=...)
	@test/fuzz/run
chaos: ## clients, crashes and failovers (CHAOS_MINUTES=5, CHAOS_SEED=...)
	@test/chaos/run
history: ## random operations on lists, checked against their isolation levels (HISTORY_SECONDS=120)
	@test/history/run
memcheck: ## regress and isolation under valgrind (MEMCHECK_VERSION=15)
	@test/memcheck
oom: ## let every single allocation of every call fail
	@OOM_FULL=1 PROVE_TESTS=test/t/060_out_of_memory.pl test/check tap
soak: ## a million operations in one session: does its memory grow? (SOAK_OPERATIONS=...)
	@test/soak

## What are the tests worth?
coverage: ## which lines of src/ do they reach? (COVERAGE_FLOOR=92)
	@test/coverage
mutation: ## take out guard after guard: do tests fail? (ONLY=name: some)
	@test/mutation/run $${ONLY:+"$$ONLY"}
fuzz-selftest: ## the same for the model of make fuzz
	@test/fuzz/selftest
chaos-selftest: ## the same for make chaos
	@test/chaos/selftest
history-selftest: ## the same for make history
	@test/history/selftest
check-citus-selftest: ## the same for make check-citus
	@test/citus/selftest
saga-selftest: ## the same for make check-saga
	@examples/order-saga/selftest

## Measure it:
bench: ## everything
	@bench/run
bench-quick: ## in a hurry
	@bench/run --quick

## Packages, in dist/:
dist: ## the archives of a release, from the last commit: PGXN takes the zip
	@packaging/dist
deb: ## for Debian: PostgreSQL 15, 17, 18 and 19 (root, or sudo)
	@packaging/deb
rpm: dist ## for the PostgreSQL of this machine (NODEPS=1: not installed by rpm)
	@packaging/rpm/build $${NODEPS:+--nodeps}
tle: ## the functions without C as a trusted language extension, for pg_tle (FROM='1.0 ...': updates from these)
	@packaging/tle.py $$FROM
image: ## a container image with PostgreSQL 17 (root, or sudo)
	@packaging/image/build
sbom: ## of all these and of the clients, in dist/sbom (KINDS='deb go': some)
	@packaging/sbom/build $$KINDS
check-packages: ## build, install and use all of them; half an hour (root; ONLY=debian: some)
	@test/packages/run $$ONLY
check-fresh: ## make demo and make check on fresh machines; half an hour (root)
	@test/fresh/run
site: ## of the documentation, in dist/site
	@docs/site/build
release-check: ## what has to be true before a release (PUBLISH=1: and to publish it)
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

# One after the other in this order; "setup" has what the others share.
setup_first = $(filter setup,$(1)) $(filter-out setup,$(1))
REGRESS := $(call setup_first,$(call files,sql/,.sql))
REGRESS_OPTS = --launcher=$(tree)/sql/unaligned
ISOLATION := $(call setup_first,$(call files,test/isolation/specs/,.spec))
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
$(error $(PG_CONFIG) not found: install the development files of your PostgreSQL (Debian: postgresql-server-dev-15, or with the number of your version) or say PG_CONFIG=/path/to/pg_config)
endif
# Debian's client has the makefiles and pg_regress, but no headers of the server,
# which only a build needs.
NO_BUILD = installcheck uninstall clean distclean list-regress list-isolation
BUILDS := $(filter-out $(NO_BUILD),$(or $(MAKECMDGOALS),all))
SERVER_HEADERS := $(wildcard $(shell $(PG_CONFIG) --includedir-server)/postgres.h)
ifeq (,$(and $(wildcard $(PGXS)),$(if $(BUILDS),$(SERVER_HEADERS),none)))
$(error no development files of that PostgreSQL: install them (Debian: postgresql-server-dev-15, or with the number of your version) or say PG_CONFIG=/path/to/pg_config)
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
