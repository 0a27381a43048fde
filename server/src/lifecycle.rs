//! Phases of the server's life, as connections and answers observe them.

use tokio::sync::watch;

/// Phase of the server, in order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are accepted.
    Open,
    /// Accepted requests are finished; new ones are refused.
    Draining,
    /// Unfinished answers end with an error.
    Cut,
}

/// The phase, and the number of connections that a drain waits for.
pub(crate) struct Lifecycle {
    phase: watch::Sender<Phase>,
    /// Each counted connection is a receiver of this channel, which carries nothing.
    connections: watch::Sender<()>,
}

/// A counted connection; its drop ends the count.
pub(crate) struct Counted(#[allow(dead_code, reason = "held for its drop")] watch::Receiver<()>);

/// The phase as one answer observes it.
pub(crate) struct PhaseWatch(watch::Receiver<Phase>);

impl PhaseWatch {
    /// Completes at the first phase that is not before `phase`.
    pub(crate) async fn reached(&mut self, phase: Phase) {
        // The sender is gone with the server itself, after the last phase.
        let _ = self.0.wait_for(|current| *current >= phase).await;
    }
}

impl Lifecycle {
    /// The life of a server that accepts requests.
    pub(crate) fn new() -> Self {
        Lifecycle { phase: watch::Sender::new(Phase::Open), connections: watch::Sender::new(()) }
    }

    /// The current phase.
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Enters `phase`.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Returns a view of the phase with its own wait.
    pub(crate) fn watch(&self) -> PhaseWatch {
        PhaseWatch(self.phase.subscribe())
    }

    /// Completes at the first phase that is not before `phase`.
    pub(crate) async fn reached(&self, phase: Phase) {
        self.watch().reached(phase).await;
    }

    /// Counts a connection. Only those accepted while the server is open are counted: a drain does
    /// not wait for the health checks that arrive during it.
    pub(crate) fn count(&self) -> Option<Counted> {
        (self.phase() == Phase::Open).then(|| Counted(self.connections.subscribe()))
    }

    /// Number of counted connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.receiver_count()
    }

    /// Completes once no counted connection is left.
    pub(crate) async fn all_closed(&self) {
        self.connections.closed().await;
    }
}
