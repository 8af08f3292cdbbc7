//! The secrets of requests to downstreams, which may be replaced while the daemon runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use paced::config::{Downstream, Http, OAuth2, Secret};
use paced::sink::http::{
    ClientAuth, HttpError, OAuth2Client, OAuth2Options, ReadTarget, Target, TargetFiles, TargetTexts,
};
use paced::tls::Tls;

use super::certificates::Handles;
use super::watches::Refresh;

/// The targets of all downstreams, by name.
#[derive(Default)]
pub(super) struct Secrets(BTreeMap<String, Arc<Target>>);

impl Secrets {
    /// Adds the target of a downstream, which replaces the one before.
    pub(super) fn insert(&mut self, name: String, target: Arc<Target>) {
        self.0.insert(name, target);
    }

    /// Removes the target of a downstream.
    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Makes later requests use the present configuration.
    pub(super) fn replace(&self, name: &str, downstream: &Downstream) {
        let Some(target) = self.0.get(name) else { return };
        if let Err(error) = target.replace(texts(&downstream.http), files(name, &downstream.http)) {
            tracing::error!(downstream = name, %error, "base URL, proxy and headers stay as they were");
        }
    }

    /// The files of each downstream that has any. The others are left out, since each is checked every second.
    pub(super) fn watched(&self) -> impl Iterator<Item = Arc<dyn Refresh>> {
        let targets = self.0.values().filter(|target| target.has_files());
        targets.map(|target| Arc::clone(target) as Arc<dyn Refresh>)
    }
}

impl Refresh for Target {
    fn refresh(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { Self::refresh(&self).await })
    }

    fn is_failing(&self) -> bool {
        Self::is_failing(self)
    }
}

/// Base URL, proxy and headers of requests.
pub(super) fn texts(http: &Http) -> TargetTexts {
    let text = |(name, value): &(String, Secret)| (name.clone(), value.expose().to_owned());
    TargetTexts {
        base_url: http.base_url.expose().to_owned(),
        proxy: http.proxy.as_ref().map(|proxy| proxy.expose().to_owned()),
        headers: http.headers.iter().map(text).collect(),
    }
}

/// The files from which these are reloaded, if there are any.
pub(super) fn files(name: &str, http: &Http) -> Option<TargetFiles> {
    let headers = http.headers.iter().map(|(_, value)| value);
    let secrets = headers.chain([&http.base_url]).chain(&http.proxy);
    let files: Vec<_> = secrets.filter_map(Secret::file).map(ToOwned::to_owned).collect();
    (!files.is_empty()).then(|| TargetFiles { name: name.to_owned(), files, read: read(http.clone()) })
}

fn read(http: Http) -> ReadTarget {
    let read = |name: &str, secret: &Secret| match secret.read_again() {
        Ok(secret) => Ok(secret.expose().to_owned()),
        Err(why) => Err(format!("{name}: {why}")),
    };
    Arc::new(move || {
        let header = |(name, value): &(String, Secret)| {
            Ok((name.clone(), read(&format!("the header `{name}`"), value)?))
        };
        Ok(TargetTexts {
            base_url: read("base_url", &http.base_url)?,
            proxy: http.proxy.as_ref().map(|proxy| read("proxy", proxy)).transpose()?,
            headers: http.headers.iter().map(header).collect::<Result<_, String>>()?,
        })
    })
}

/// The clients of OAuth2 in this process: downstreams that name the same client share its token.
#[derive(Default)]
pub(crate) struct Clients {
    known: Vec<Known>,
}

struct Known {
    settings: OAuth2,
    proxy: Option<Secret>,
    client: OAuth2Client,
}

impl Clients {
    /// The client of a downstream, if it has one. Its TLS is added to `handles` if there are files for it.
    pub(crate) fn of(
        &mut self,
        downstream: &str,
        http: &Http,
        handles: &mut Handles,
    ) -> Result<Option<OAuth2Client>, HttpError> {
        let Some(settings) = &http.oauth2 else { return Ok(None) };
        let is_same = |known: &&Known| known.settings.is_same_client(settings) && known.proxy == http.proxy;
        let setting = format!("downstreams.{downstream}.http.oauth2.tls");
        if let Some(known) = self.known.iter().find(is_same) {
            // Its files stay watched for as long as one of them has the client.
            settings.tls.as_ref().map(|options| handles.http(setting, options)).transpose()?;
            return Ok(Some(known.client.clone()));
        }
        let tls = settings.tls.as_ref().map(|options| handles.http(setting, options)).transpose()?;
        let client = OAuth2Client::new(options(settings, http.proxy.as_ref(), tls))?;
        let (settings, proxy) = (settings.clone(), http.proxy.clone());
        self.known.push(Known { settings, proxy, client: client.clone() });
        Ok(Some(client))
    }

    /// Drops the clients that no sink uses any more.
    pub(super) fn drop_unused(&mut self) {
        self.known.retain(|known| known.client.is_shared());
    }

    /// The clients, each with its settings.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OAuth2, &OAuth2Client)> {
        self.known.iter().map(|known| (&known.settings, &known.client))
    }
}

fn options(settings: &OAuth2, proxy: Option<&Secret>, tls: Option<Tls>) -> OAuth2Options {
    let OAuth2 { token_url, client_id, client_secret, scopes, params, client_auth, timeout, .. } = settings;
    OAuth2Options {
        token_url: token_url.clone(),
        client_id: client_id.clone(),
        client_secret: client_secret.expose().to_owned(),
        read_secret: client_secret.reader(),
        scopes: scopes.clone(),
        params: params.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
        client_auth: match client_auth {
            paced::config::ClientAuth::Basic => ClientAuth::Basic,
            paced::config::ClientAuth::Post => ClientAuth::Post,
        },
        timeout: *timeout,
        tls,
        proxy: proxy.map(|proxy| proxy.expose().to_owned()),
        read_proxy: proxy.and_then(Secret::reader),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use paced::sink::http::{HttpOptions, HttpSink};

    use super::*;
    use crate::daemon::watches::Watches;

    const SECOND: Duration = Duration::from_secs(1);

    /// Time stands still while files are read, which threads do.
    #[tokio::test(start_paused = true)]
    async fn files_are_looked_at_each_second() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0").unwrap();
        let base_url = "http://127.0.0.1:1/";
        let reads = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&reads);
        let read: ReadTarget = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(TargetTexts { base_url: base_url.to_owned(), proxy: None, headers: vec![] })
        });
        let files = TargetFiles { name: "billing".to_owned(), files: vec![file.clone()], read };
        let sink = HttpSink::new(HttpOptions::new(base_url)).unwrap().reading_again(files);
        let mut secrets = Secrets::default();
        secrets.insert("billing".to_owned(), Arc::new(sink.target()));
        let plain = HttpSink::new(HttpOptions::new(base_url)).unwrap();
        secrets.insert("without".to_owned(), Arc::new(plain.target()));
        assert_eq!(secrets.watched().count(), 1, "nothing of the other one may change");
        let watches: Watches = secrets.watched().collect();
        let _watch = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(watches.watch()));
        tokio::time::sleep(SECOND / 2).await;
        for n in 1..=3 {
            std::fs::write(&file, "0".repeat(n + 1)).unwrap();
            let before = reads.load(Ordering::SeqCst);
            tokio::time::sleep(SECOND).await;
            assert_eq!(reads.load(Ordering::SeqCst), before + 1, "the {n}th second");
        }
    }
}
