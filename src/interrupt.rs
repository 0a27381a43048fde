//! SIGINT as a flag: a long computation stops and prints what there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use trail_cli::Error;

use crate::scroll_region;

/// Exit code of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// A SIGINT sets the flag; one that finds it set ends the process.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handler; from here on the first SIGINT does not end the process.
    pub fn listen() -> Result<Interrupt, Error> {
        let failed = |error| Error::failed(format!("cannot wait for signals: {error}"));
        let flag = Interrupt(Arc::new(AtomicBool::new(false)));
        let set = flag.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        // Before this returns: a line editor saves the handler that it finds, and restores it.
        let signals = {
            let _context = runtime.enter();
            signal(SignalKind::interrupt())
        };
        let mut signals = signals.map_err(failed)?;
        let thread = std::thread::Builder::new().name("interrupt".into());
        let wait = async move {
            while signals.recv().await.is_some() {
                if set.0.swap(true, Ordering::Relaxed) {
                    scroll_region::exit(INTERRUPTED);
                }
            }
        };
        thread.spawn(move || runtime.block_on(wait)).map_err(failed)?;
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
