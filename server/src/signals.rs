//! Signals of the process, handled by a thread of their own: neither the load of a model nor a
//! stalled server keeps them waiting.

use std::io::IsTerminal;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use trail_cli::{Error, notice};

/// Handlers of SIGTERM, SIGINT and SIGHUP. Until the server accepts connections a signal ends the
/// process with 128 and its number, as it would without a handler; as PID 1 of a container the
/// process has no default action.
#[derive(Clone, Debug)]
pub struct Signals {
    is_serving: Arc<AtomicBool>,
    drain: watch::Receiver<bool>,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    ///
    /// The thread or a handler could not be made.
    pub fn install() -> Result<Signals, Error> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::failed(format!("cannot wait for signals: {error}"))
        };
        let (drain, receiver) = watch::channel(false);
        let is_serving = Arc::new(AtomicBool::new(false));
        let (report, installed) = mpsc::channel();
        let serving = is_serving.clone();
        thread::Builder::new()
            .name("trail-signals".into())
            .spawn(move || listen(&serving, &drain, &report))
            .map_err(|error| failed(&error))?;
        match installed.recv() {
            Ok(Ok(())) => Ok(Signals { is_serving, drain: receiver }),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(failed(&"the thread ended")),
        }
    }

    /// The first signal from now on asks for a drain, and the second ends the process.
    pub(crate) fn begin_serving(&self) {
        self.is_serving.store(true, Ordering::SeqCst);
    }

    /// Completes once a drain is asked for.
    pub(crate) async fn drain(&mut self) {
        // The thread that holds the sender never ends.
        let _ = self.drain.wait_for(|asked| *asked).await;
    }
}

fn listen(
    is_serving: &AtomicBool,
    drain: &watch::Sender<bool>,
    report: &mpsc::Sender<std::io::Result<()>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(report.send(Err(error))),
    };
    runtime.block_on(async {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let mut handlers = Vec::new();
        for kind in kinds {
            match signal(kind) {
                Ok(handler) => handlers.push(handler),
                Err(error) => return drop(report.send(Err(error))),
            }
        }
        let _ = report.send(Ok(()));
        let [terminate, interrupt, hangup] = &mut handlers[..] else { return };
        loop {
            let kind = tokio::select! {
                _ = terminate.recv() => SignalKind::terminate(),
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = hangup.recv() => SignalKind::hangup(),
            };
            act(kind, is_serving.load(Ordering::SeqCst), drain);
        }
    });
}

fn act(kind: SignalKind, is_serving: bool, drain: &watch::Sender<bool>) {
    let is_hangup = kind == SignalKind::hangup();
    // Only the end of the terminal that the server runs on is a reason to end.
    if is_hangup && is_serving && !std::io::stderr().is_terminal() {
        return notice("SIGHUP: there is nothing to reload");
    }
    match *drain.borrow() {
        _ if !is_serving => process::exit(128 + kind.as_raw_value()),
        true if !is_hangup => process::exit(1),
        _ => {}
    }
    drain.send_replace(true);
}
