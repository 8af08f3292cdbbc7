//! The JSON Schema of `paced.toml`, for editors.
//!
//! It refuses what the reader refuses of single values: unknown keys, wrong types, words that are none of those to choose
//! from, and texts of a wrong form. What depends on several values, or on files, the reader alone knows. A new key is one
//! line here; the tests compare all of this with what the reader asks for, its defaults, and what it refuses.

use serde_json::{Value, json};

use downstream::{downstreams, plans};
use node::{Node, Table, boolean, list, one_of, path, string, text};

mod downstream;
mod node;

/// Draft 4 is what taplo and Even Better TOML validate by.
const DRAFT: &str = "http://json-schema.org/draft-04/schema#";

const DURATION: &str = "^[0-9]+(us|ms|s|m|h|d)$";
const SIZE: &str = "^[0-9]+(B|KiB|MiB|GiB)$";
const PREFIX: &str = "^[A-Za-z0-9._-]{1,64}$";

/// The JSON Schema (Draft 4) of a configuration file.
#[must_use]
pub fn schema() -> Value {
    let about = "The configuration of paced. `paced check` finds more mistakes than this schema can.";
    Table::new(about)
        .key(
            "precision",
            one_of(&["fine", "coarse"]).default("fine").about(
                "How punctual releases are. fine: a thread sleeps until just before each slot and spins for the last \
                 microseconds. coarse: the timer of the runtime, 1 to 2 ms late.",
            ),
        )
        .key("amqp", amqp())
        .key("store", store())
        .key("admin", admin())
        .key("reply", reply())
        .key("shutdown", shutdown())
        .key("plans", plans())
        .key("downstreams", downstreams())
        .end()
        .with("$schema", DRAFT)
        .with("title", "paced.toml")
        .done()
}

fn amqp() -> Node {
    Table::new("The broker.")
        .secret(
            "url",
            text("^amqps?://.")
                .default("amqp://127.0.0.1:5672/%2f")
                .about("amqp:// or amqps://USER:PASSWORD@HOST:PORT/VHOST; %2f is the vhost `/`. Keep a password in `url_file`."),
        )
        .key("prefix", text(PREFIX).default("paced").about("The first part of the name of every exchange and queue."))
        .key(
            "declare",
            boolean().default(true).about(
                "false: exchanges and queues are only checked, for users who may not declare them.",
            ),
        )
        .key(
            "window_bytes",
            text(SIZE).default("256MiB").about(
                "The bytes of unsettled messages that this process holds in memory, over all downstreams: 1MiB to 1024GiB.",
            ),
        )
        .key("tls", tls("an amqps:// URL"))
        .end()
}

fn store() -> Node {
    Table::new("Where the pace is kept.")
        .secret(
            "url",
            text(r"^(memory:$|rediss?(\+(sentinel|cluster))?://.)").default("memory:").about(
                "memory: is this process alone. Shared by all replicas: redis://[[USER]:PASSWORD@]HOST[:PORT][/DB], \
                 redis+sentinel://HOST[:PORT][,...]/MASTER_NAME[/DB] or redis+cluster://HOST[:PORT][,...]; rediss for TLS. \
                 Keep a password in `url_file`.",
            ),
        )
        .key("key_prefix", text(PREFIX).default("paced").about("The first part of every key in the store."))
        .key("on_unavailable", on_unavailable().default("hold"))
        .key("tls", tls("a rediss URL"))
        .end()
}

fn on_unavailable() -> Node {
    one_of(&["hold", "local", "open"]).about(
        "What becomes of jobs while the store cannot be reached. hold: nothing is released without a slot. local: each \
         replica releases its part of the rate. open: jobs are released as fast as they come.",
    )
}

fn admin() -> Node {
    let host = r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])";
    let token = || text("^[!-~]{1,1024}$");
    Table::new("Probes, metrics, the page and the API of the daemon.")
        .key(
            "listen",
            text(&format!("^{host}:[0-9]+$"))
                .about("HOST:PORT, such as 127.0.0.1:9750 or [::1]:9750. Nothing listens unless it is set."),
        )
        .secret("token", token().about("What requests that change something must carry; without it they are refused."))
        .secret(
            "read_token",
            token().about("What requests that only look must carry; without it whoever reaches the address may look."),
        )
        .key(
            "allow_hosts",
            list(text(&format!("^{host}(:[0-9]+)?$"))).default(json!([])).about(
                "Names that requests may be addressed to (their Host header), as HOST or HOST:PORT, besides those of this \
                 machine.",
            ),
        )
        .key("tls", admin_tls())
        .end()
}

fn admin_tls() -> Node {
    Table::new("TLS of the address in `listen`. The files are read again when they change.")
        .key("cert_file", path().about("The certificate of this server, and those that lead to its authority (PEM)."))
        .key("key_file", path().about("The private key of `cert_file`, unencrypted (PEM)."))
        .key(
            "client_ca_file",
            path().about(
                "The authorities (PEM), one of which must have signed the certificate that each client shows, probes and \
                 scrapers too. Unset: clients need none.",
            ),
        )
        .end()
}

fn reply() -> Node {
    Table::new("Where replies may go.")
        .key(
            "allow",
            list(string().with("maxLength", 255)).default(json!(["amq.rabbitmq.reply-to", ""])).about(
                "What the name of a queue must begin with for replies (reply_to) to go there; \"\" is every name.",
            ),
        )
        .end()
}

fn shutdown() -> Node {
    Table::new("The end of the process.")
        .key(
            "drain_timeout",
            text(DURATION).default("25s").about("How long sends in flight may take to end after SIGTERM."),
        )
        .end()
}

/// The table `tls` of connections that this process opens.
fn tls(url: &str) -> Node {
    Table::new(&format!("TLS, for {url}. The files are read again when they change."))
        .key(
            "ca_file",
            path().about("The authorities that the server's certificate may be signed by (PEM), instead of the system's."),
        )
        .key(
            "cert_file",
            path().about("The certificate to show to a server that asks for one (PEM). It needs a `key_file`."),
        )
        .key("key_file", path().about("The private key of `cert_file`, unencrypted (PEM)."))
        .key(
            "server_name",
            text(r"^[A-Za-z0-9._:\[\]-]+$")
                .about("The name that the server's certificate must have. Unset: the host in the URL."),
        )
        .end()
}

#[cfg(test)]
mod tests;
