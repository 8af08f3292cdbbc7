//! Reads the sections that apply to the whole process.

use std::path::PathBuf;

use crate::config::key::keys;
use crate::config::reader::{Reader, Table};
use crate::config::secret::Secret;
use crate::config::settings::{Admin, Amqp, NamedToken, Reply, Role, Shutdown, Store};
use crate::config::tls::{server_tls, tls};
use crate::config::{url, value, warnings};
use crate::dispatch::OnUnavailable;

keys! {
    /// The broker.
    AMQP = "amqp".default("{}");
    /// amqp:// or amqps://USER:PASSWORD@HOST:PORT/VHOST; %2f is the vhost `/`. Several nodes of a cluster: HOST:PORT,HOST:PORT.
    /// Each connection goes to a node, and an address of its name, that answers. Keep a password in a file.
    URL = "url".default("amqp://127.0.0.1:5672/%2f").matches("^amqps?://.").file("secrets/amqp-url").followed();
    /// The first part of the name of every exchange and queue.
    PREFIX = "prefix".default("paced").matches(value::PREFIX);
    /// false: paced only checks exchanges and queues, for users who may not declare them.
    DECLARE = "declare".default("true");
    /// The bytes of unsettled messages that this process holds in memory, over all downstreams. One half is divided
    /// evenly among them, so that a downstream whose jobs cannot go leaves room for the others. The other half is for those
    /// that need it first.
    WINDOW_BYTES = "window_bytes".default("240MiB").within("1MiB", "1024GiB");
}

keys! {
    /// The store of the pace.
    STORE = "store".default("{}");
    /// Where the pace is kept. memory: serves only this process, and its end loses the pace. file:PATH serves only this process
    /// too, and keeps the pace over restarts; a PATH starts at the directory of this file. All replicas share a Redis
    /// (6.2 or later):
    ///   redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]                                one server
    ///   redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,...]/MASTER_NAME[/DB]     the master that sentinels know
    ///   redis+cluster://[[USER]:PASSWORD@]HOST[:PORT][,...]                       a cluster
    /// With rediss for TLS. docs/redis.md says what each needs. Keep a password in a file.
    STORE_URL = "url".default("memory:").matches(r"^(memory:$|file:.|rediss?(\+(sentinel|cluster))?://.)")
        .file("secrets/store-url").followed();
    /// The first part of every key in the store.
    KEY_PREFIX = "key_prefix".default("paced").matches(value::PREFIX);
    /// What happens to jobs while the store cannot be reached. hold: nothing is released without a slot; jobs stay in
    /// the broker. local: each replica releases its part of the rate. open: jobs are released as fast as they come.
    ON_UNAVAILABLE = "on_unavailable".default("hold").reload();
}

keys! {
    /// Where replies may go.
    REPLY = "reply".default("{}");
    /// Replies (reply_to) go only to queues whose name begins with one of these, since paced may write to queues that its
    /// producers may not write to. By default Direct Reply-To, and queues that the broker named; "" is every name. A job
    /// with another name is dead-lettered, and always one that names paced's own queues (PREFIX.*) or a downstream's.
    ALLOW = "allow".default("[\"amq.rabbitmq.reply-to\", \"amq.gen-\"]").up_to(255, "").example("[\"replies.\"]");
}

keys! {
    /// Probes, metrics, the page and the API of the daemon (docs/operations.md).
    ADMIN = "admin".default("{}");
    /// The address, as HOST:PORT, such as 127.0.0.1:9750 or [::1]:9750. It has /livez, /readyz (?verbose) and
    /// /metrics for Prometheus, the page at / and /api/v1. Off unless set. Everyone who can connect may read, unless
    /// there is a read_token.
    LISTEN = "listen".matches(r"^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\]):[0-9]+$").example("127.0.0.1:9750");
    /// The token that changes need (Authorization: Bearer TOKEN), such as pauses and rates. Without it changes are
    /// refused. Visible ASCII; make one with `openssl rand -hex 32`.
    TOKEN = "token".matches("^[!-~]{1,1024}$").example("...").file("secrets/admin-token").reload();
    /// The token that reads need: /metrics, /readyz?verbose, `paced status` and the API; the page asks
    /// for it. `token` is accepted too. Without it everyone who can connect may read.
    READ_TOKEN = "read_token".matches("^[!-~]{1,1024}$").example("...").file("secrets/admin-read-token").reload();
    /// Tokens of people and programs by name, in addition to these two. The log and the history of changes have the name.
    TOKENS = "tokens".matches(value::NAME);
    /// A token with a name.
    NAMED = "NAME".default("{}");
    /// The token of the requests, as for admin.token. If its file is removed or emptied, the token is revoked.
    NAMED_TOKEN = "token".required("name its file, such as token_file = \"secrets/admin-token-alice\"")
        .matches("^[!-~]{1,1024}$").example("...").file("secrets/admin-token-alice").reload();
    /// read: only reads. operate: also to pause, resume, cancel jobs, and list and replay dead letters. admin: everything.
    ROLE = "role".required("say what it allows, such as role = \"operate\"").example("operate").reload();
    /// Names that requests may be addressed to (their Host header), as HOST or HOST:PORT. localhost and addresses are
    /// always allowed. /livez and a plain /readyz answer to any name.
    ALLOW_HOSTS = "allow_hosts".default("[]").example("[\"paced.internal\"]")
        .matches(r"^([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?$");
    /// true: the API and the page show the bodies of dead letters to clients with the role admin, who need no login to
    /// the broker for it. The log names who reads one. Bodies may have the data of your customers.
    SHOW_BODIES = "show_bodies".default("false").reload();
}

keys! {
    /// How the process stops.
    SHUTDOWN = "shutdown".default("{}");
    /// How long requests in flight may take to end after SIGTERM.
    DRAIN_TIMEOUT = "drain_timeout".default("25s");
}

const ROLES: [(&str, Role); 3] = [("read", Role::Read), ("operate", Role::Operate), ("admin", Role::Admin)];

pub(super) const POLICIES: [(&str, OnUnavailable); 3] =
    [("hold", OnUnavailable::Hold), ("local", OnUnavailable::Local), ("open", OnUnavailable::Open)];

pub(super) fn amqp<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Amqp> {
    let table = reader.section(root, &AMQP);
    let url = reader.secret(&table, &URL, url::amqp);
    warnings::password(reader, &table, &URL, url.as_ref(), "write amqps://");
    let prefix = reader.parsed(&table, &PREFIX, value::prefix);
    let declare = reader.boolean(&table, &DECLARE);
    let window_bytes = reader.size(&table, &WINDOW_BYTES);
    let tls = tls(reader, &table, url.as_ref(), "amqps://HOST:5671/VHOST");
    Some(Amqp { url: url?, prefix: prefix?, declare: declare?, window_bytes: window_bytes?, tls })
}

pub(super) fn store<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Store> {
    let table = reader.section(root, &STORE);
    let url = reader.secret(&table, &STORE_URL, url::store);
    warnings::password(reader, &table, &STORE_URL, url.as_ref(), "write rediss instead of redis");
    let file = url.as_ref().and_then(|url| store_file(reader, &table, url));
    let key_prefix = reader.parsed(&table, &KEY_PREFIX, value::prefix);
    let on_unavailable = reader.choice(&table, &ON_UNAVAILABLE, "nothing to do", &POLICIES);
    let tls = tls(reader, &table, url.as_ref(), "rediss instead of redis");
    Some(Store { url: url?, file, key_prefix: key_prefix?, on_unavailable: on_unavailable?, tls })
}

/// The file that the URL of a store names: it starts at the directory of its source.
fn store_file<'v>(reader: &mut Reader<'v>, table: &Table<'v>, url: &Secret) -> Option<PathBuf> {
    let path = url.expose().strip_prefix("file:")?;
    let keys = [STORE_URL.name.to_owned(), format!("{}_file", STORE_URL.name)];
    let found = keys.iter().find_map(|key| reader.given(table, key))?;
    reader.file(&found, path)
}

pub(super) fn reply<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Reply> {
    let table = reader.section(root, &REPLY);
    let allow = reader.texts(&table, &ALLOW, value::reply_prefix);
    Some(Reply { allow: allow? })
}

/// Reads `[admin]`. The reader has noted the mistakes, even if a part is `None`.
pub(in crate::config) fn admin<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Admin {
    let table = reader.section(root, &ADMIN);
    let listen = reader.parsed(&table, &LISTEN, value::listen);
    let [token, read_token] = [TOKEN, READ_TOKEN].map(|key| {
        let token = reader.secret(&table, &key, value::token);
        warnings::short_token(reader, &table, key.name, token.as_ref());
        token
    });
    let allow_hosts = reader.texts(&table, &ALLOW_HOSTS, value::allowed_host).unwrap_or_default();
    let show_bodies = reader.boolean(&table, &SHOW_BODIES).unwrap_or_default();
    // They come last, since they are tables of their own.
    let tls = server_tls(reader, &table);
    let tokens = named_tokens(reader, &table);
    Admin { listen, token, read_token, tokens, allow_hosts, show_bodies, tls }
}

fn named_tokens<'v>(reader: &mut Reader<'v>, admin: &Table<'v>) -> Vec<NamedToken> {
    let all = reader.names(admin, &TOKENS, &[]);
    let mut tokens = Vec::new();
    for name in all.keys() {
        let table = reader.section(&all, &NAMED.under(&name));
        let named = value::name("token", &name);
        if let Err(problem) = &named {
            reader.wrong_name(&table, problem);
        }
        let token = reader.secret(&table, &NAMED_TOKEN, value::token);
        warnings::short_token(reader, &table, NAMED_TOKEN.name, token.as_ref());
        let role = reader.choice(&table, &ROLE, "no role", &ROLES);
        tokens.extend(token.zip(role).map(|(token, role)| NamedToken { name, token, role }));
    }
    tokens
}

pub(super) fn shutdown<'v>(reader: &mut Reader<'v>, root: &Table<'v>) -> Option<Shutdown> {
    let table = reader.section(root, &SHUTDOWN);
    let drain_timeout = reader.duration(&table, &DRAIN_TIMEOUT);
    Some(Shutdown { drain_timeout: drain_timeout? })
}
