//! Signals: SIGINT as a flag, so that a long computation stops and prints what there is, and
//! handlers of others.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::runtime::Runtime;
use trail_cli::{Error, Signal, SignalKind};

use crate::terminal;

/// A SIGINT sets the flag; one that finds it set ends the process.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handler; from here on the first SIGINT does not end the process.
    pub fn listen() -> Result<Interrupt, Error> {
        let flag = Interrupt(Arc::new(AtomicBool::new(false)));
        let set = flag.clone();
        on_signals([SignalKind::Interrupt], move |kind| {
            if set.0.swap(true, Ordering::Relaxed) {
                terminal::exit(kind.exit_code());
            }
        })?;
        Ok(flag)
    }

    /// True after a SIGINT.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Clears the flag, and returns true if it was set.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Lets a thread call `act` for each signal of `kinds`, in place of what they do otherwise.
pub fn on_signals<const N: usize>(
    kinds: [SignalKind; N],
    mut act: impl FnMut(SignalKind) + Send + 'static,
) -> Result<(), Error> {
    let (runtime, mut signals) = register(kinds)?;
    let wait = poll_fn(move |context| {
        for (kind, signal) in kinds.iter().zip(&mut signals) {
            while signal.poll_recv(context).is_ready() {
                act(*kind);
            }
        }
        Poll::<()>::Pending
    });
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || runtime.block_on(wait)).map_err(failed)?;
    Ok(())
}

/// Takes its effect from the signal `kind`.
pub fn disarm(kind: SignalKind) -> Result<(), Error> {
    // Its handler stays when no thread listens any more.
    register([kind]).map(drop)
}

/// Installs the handlers. Before this returns: a line editor saves the handler that it finds, and
/// restores it.
fn register<const N: usize>(kinds: [SignalKind; N]) -> Result<(Runtime, Vec<Signal>), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let signals = {
        let _context = runtime.enter();
        kinds.into_iter().map(Signal::listen).collect::<Result<_, _>>()
    };
    Ok((runtime, signals.map_err(failed)?))
}

fn failed(error: std::io::Error) -> Error {
    Error::failed(format!("cannot wait for signals: {error}"))
}
