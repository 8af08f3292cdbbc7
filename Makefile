# `make` lists what there is.

CARGO ?= cargo
FEATURES = redis amqp http config demo
# The features that docs.rs shows.
SHOWN = $(shell sed -n '/^\[package.metadata.docs.rs\]/,/^$$/s/^features = \[\(.*\)\]/\1/p' Cargo.toml | tr -d '" ')
SCRIPTS = $(shell git ls-files '*.sh' .ci/run deploy/debian/p*rm deploy/debian/postinst 2>/dev/null || ls .ci/run tests/support/*.sh deploy/*.sh)
PACKAGES = target/packages

.DEFAULT_GOAL := help
.PHONY: help build deb demo tour bench footprint generated packages sbom tarball test test-crate test-noisy test-packages test-page test-quick test-servers bytes chaos lint lint-code lint-deploy lint-docs lint-features lint-licences lint-metrics lint-scripts lint-words screenshots servers size

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: ## Build the release binary
	$(CARGO) build --release --locked --features daemon --bin paced

deb: build ## Make the .deb (target/packages)
	@deploy/package.sh deb

tarball: build ## Make the tarball (target/packages)
	@deploy/package.sh tarball

sbom: ## List all that is in the binary, as CycloneDX (target/packages; needs cargo-cyclonedx)
	@deploy/sbom.sh

packages: build ## Make .deb, tarball and SBOM, with checksums
	@rm -rf $(PACKAGES)
	@deploy/package.sh deb tarball
	@if $(CARGO) cyclonedx --version >/dev/null 2>&1; then deploy/sbom.sh; else \
		echo "cargo-cyclonedx is not installed (cargo install --locked cargo-cyclonedx): there is no SBOM"; \
	fi
	@deploy/package.sh sums

test-crate: ## Build the library and the program from what cargo packages, and nothing else (some minutes)
	$(CARGO) package --locked --allow-dirty --features daemon

test-packages: deb ## Check the .deb with lintian; install, upgrade, remove and purge it in a root folder
	@tests/support/test-packages.sh $$(ls -t $(PACKAGES)/*.deb | head -n 1)

demo: ## Watch 1 000 jobs go to an API at 100/s, through two replicas (no setup needed)
	@echo "Building paced with the release profile; the first time takes a few minutes."
	@tests/support/install-beside.sh "" $(CARGO) build --release --locked --features demo --bin paced --bin paced-demo
	@$(CARGO) run --release --locked --quiet --features demo --bin paced-demo -- $(ARGS)

tour: ## Run the commands of the README and docs/tour.md, in their order, on private servers (PACED=DIR: with DIR/paced)
	@tests/support/install-servers.sh tests
	@tests/support/readme-tour.sh

bench: servers ## Measure paced next to loops without it, and write docs/benchmarks.md (ARGS="share": some of it)
	@$(CARGO) bench --locked --quiet --features daemon --bench pace -- $(ARGS)

footprint: servers ## Count the crates that embedding paced takes, and time their build
	@tests/support/footprint.sh

generated: ## Write what is made from the keys in src/config, tests/it/apis.toml, states.toml and CONTRIBUTING.md: config/paced.toml, docs/reference/configuration.md, docs/apis.md, a table of docs/troubleshooting.md, docs/images/house.svg; and tests/it/house/public.txt, the public items
	PACED_WRITE_GENERATED=1 $(CARGO) test --locked --quiet --all-features --lib -- config::tests::generated
	PACED_WRITE_GENERATED=1 $(CARGO) test --locked --quiet --all-features --test it -- apis::the_page states::the_table house::picture house::public

test: ## Run all tests, against private Redis and RabbitMQ servers
	@CARGO="$(CARGO)" tests/support/run-tests.sh all

test-quick: ## Run the unit tests, and one job's way through real servers (under a minute once it is built)
	@CARGO="$(CARGO)" tests/support/run-tests.sh quick

test-noisy: ## Run all tests beside two busy loops and a disk writer
	@CARGO="$(CARGO)" tests/support/run-tests.sh noisy

test-page: ## Try the live page in a headless Chromium, against real daemons (ARGS="--test-name-pattern=keyboard": those tests)
	@tests/support/test-page.sh main $(ARGS)

screenshots: ## Take the pictures in docs/images: of the live page, top and the demo
	@tests/support/test-page.sh screenshots

test-servers: ## Run tests, faults and chaos against newer servers, in root folders (ARGS="4.3": that pair; TESTS="it amqp::": those tests)
	@TESTS="$(TESTS)" tests/support/test-servers.sh $(ARGS)

bytes: servers ## Run the tests of long jobs and many downstreams at full size, which judge memory, bytes and pace; nothing else should run meanwhile
	PACED_LONG_JOBS=$${PACED_LONG_JOBS:-40} PACED_LONG_MIB=$${PACED_LONG_MIB:-32} PACED_SHORTER_JOBS=600 PACED_SHORT_PACE=95 PACED_WIDE_DOWNSTREAMS=200 \
		$(CARGO) test --locked --all-features --test bytes -- --test-threads=1 --nocapture $(ARGS)

chaos: ## Run the long fault tests, one by one; nothing else should run meanwhile (ARGS="flush": some of them)
	@tests/support/install-servers.sh chaos
	$(CARGO) build --locked --all-features --example worker
	$(CARGO) test --locked --all-features --test chaos -- --test-threads=1 --nocapture $(ARGS)

lint: lint-scripts lint-words lint-code lint-deploy lint-docs lint-features lint-licences lint-metrics ## Check format, lints, docs, features, licences, metrics, scripts, words

servers:
	@tests/support/install-servers.sh

size: ## Count the lines of code, comments and tests, by folder (ARGS=v0.1.0: of that revision)
	@tests/support/size.sh $(ARGS)

lint-scripts:
	@for script in $(SCRIPTS); do sh -n "$$script" || exit 1; done

lint-words:
	@tests/support/check-words.sh

lint-code:
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked --test chaos --test page --all-features -- -D warnings

# With the features of dependencies that a user's build takes, as lint-features checks them too: none is checked twice.
lint-docs:
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --locked --no-deps --all-features --lib
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --locked --no-deps --lib --features $(SHOWN)

# What other people depend on, the library with nothing or with its defaults (which are `headers`); and each other feature that
# they may choose alone. `tls` and `dispatch` are parts of those, and of no use alone; `failpoints` is for tests, which take all
# features.
lint-features:
	$(CARGO) clippy --locked --no-default-features -- -D warnings
	$(CARGO) clippy --locked -- -D warnings
	@set -e; for feature in $(FEATURES); do \
		echo "$(CARGO) clippy --locked --no-default-features --features $$feature -- -D warnings"; \
		$(CARGO) clippy --locked --no-default-features --features $$feature -- -D warnings; \
	done

lint-licences:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
		$(CARGO) deny --all-features check bans licenses sources && \
		if ls -d "$${CARGO_HOME:-$$HOME/.cargo}"/advisory-db* >/dev/null 2>&1; then \
			$(CARGO) deny --all-features --offline check advisories; \
		else \
			echo "there is no database of advisories (cargo deny fetch db): its check is skipped"; \
		fi; \
	else \
		echo "cargo-deny is not installed: its check is skipped (tests/it/house.rs reads the licences too)"; \
	fi

# Each check with the tools that are at hand; it says which are not.
lint-deploy:
	@tests/support/check-deploy.sh

# It takes the program of `make test`. Where promtool cannot be installed, the checks that need it are skipped;
# tests/it/monitoring.rs still reads each query.
lint-metrics:
	@tests/support/install-beside.sh promtool $(CARGO) test --locked --all-features --no-run || [ $$? = 3 ]
	@if command -v promtool >/dev/null 2>&1 && command -v curl >/dev/null 2>&1; then \
		promtool check rules deploy/monitoring/rules.yml && \
		promtool test rules deploy/monitoring/rules_test.yml && \
		tests/support/check-metrics.sh "$${CARGO_TARGET_DIR:-target}/debug/paced"; \
	else \
		echo "promtool (Debian's prometheus) or curl is not installed: the checks of metrics, rules and alerts are skipped"; \
	fi
