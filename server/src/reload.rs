//! Files that SIGHUP makes the server read again.

use std::sync::Arc;

use tokio::sync::watch::Receiver;
use trail_cli::notice;

use crate::state::ServerState;

/// True if the server has such files.
pub(crate) fn has_files(state: &ServerState) -> bool {
    state.tls.is_some() || state.keys.as_ref().is_some_and(|keys| keys.file().is_some())
}

/// Reads the files again at each of `reloads`. A file that cannot be read leaves what there was.
pub(crate) async fn run(mut reloads: Receiver<()>, state: Arc<ServerState>) {
    while reloads.changed().await.is_ok() {
        reload(&state);
    }
}

fn reload(state: &ServerState) {
    if let Some((keys, file)) = state.keys.as_ref().and_then(|keys| Some((keys, keys.file()?))) {
        let file = file.display();
        match keys.reload() {
            Ok(count) => notice(format_args!("SIGHUP: {count} API keys, with those of {file}")),
            Err(error) => notice(format_args!("warning: SIGHUP: the former keys stay: {error}")),
        }
    }
    if let Some(tls) = &state.tls {
        let file = tls.certificate().display();
        match tls.reload() {
            Ok(()) => {
                notice(format_args!("SIGHUP: new connections have the certificate of {file}"));
            }
            Err(error) => {
                notice(format_args!("warning: SIGHUP: the former certificate stays: {error}"));
            }
        }
    }
}
