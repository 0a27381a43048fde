//! Settings of a test: environment variables at the start, control functions later.

use super::Code;
use super::chip::{A100, CHIPS, Chip};

/// Version of the driver unless a test sets another one: CUDA 12.4.
const DRIVER: u32 = 12040;

/// When queued work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Not before somebody waits for it.
    Late,
    /// As soon as its streams and events allow.
    Early,
    /// Some of it early, by seed.
    Seeded,
}

/// Things that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Allocation,
    Launch,
    Copy,
    /// A kernel that begins: it never ends.
    Hang,
    /// The same of a copy.
    HangCopy,
    /// A context that is made.
    Context,
}

/// A planned failure: the `nth` from now (1 is the next) gives `code`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) target: Target,
    pub(crate) nth: u64,
    pub(crate) code: Code,
}

/// Settings.
pub(crate) struct Config {
    pub(crate) seed: u64,
    pub(crate) order: Order,
    pub(crate) chip: &'static Chip,
    /// Multiprocessors.
    pub(crate) sms: u32,
    /// Version of the driver, 1000 * major + 10 * minor of CUDA.
    pub(crate) driver: i32,
    pub(crate) memory: u64,
    /// Host memory that can be pinned, bytes.
    pub(crate) host_memory: u64,
    /// The driver has memory operations of streams.
    pub(crate) memory_operations: bool,
    /// The driver makes graphs ready.
    pub(crate) graphs: bool,
    /// The device launches blocks that wait for one another.
    pub(crate) cooperative: bool,
    pub(crate) failures: Vec<Failure>,
    /// Error of every call from now on: the device is lost.
    pub(crate) lost: Option<Code>,
    /// Warp instructions without the end of any block.
    pub(crate) patience: u64,
    /// Microseconds after which queued work runs although no call waits for it.
    pub(crate) idle_us: u64,
    /// Queued work runs although no call waits for it.
    pub(crate) background: bool,
    pub(crate) verbose: bool,
}

impl Config {
    /// Defaults, changed by `TRAIL_EMU_SEED`, `_ORDER` (late, early, seeded), `_CHIP` (a name in
    /// [`CHIPS`]), `_DRIVER` (12040), `_SMS`, `_MEMORY` and `_HOST_MEMORY` (bytes), `_PATIENCE`,
    /// `_IDLE_US`, `_VERBOSE`, `_WITHOUT` (memops, graphs, cooperative) and `_FAIL`
    /// (`alloc:3:2,launch:1:719,copy:2:999,context:1:46,hang:5,lost:999`: operation, number, error
    /// code).
    pub(crate) fn from_environment() -> Config {
        let number = |name: &str, default: u64| {
            variable(name).and_then(|value| value.parse().ok()).unwrap_or(default)
        };
        let without =
            |what| variable("WITHOUT").is_some_and(|list| list.split(',').any(|one| one == what));
        let chip = match variable("CHIP").map(|name| (Chip::named(&name), name)) {
            None => &A100,
            Some((Some(chip), _)) => chip,
            Some((None, name)) => {
                let names: Vec<&str> = CHIPS.iter().map(|(name, _)| *name).collect();
                let names = names.join(", ");
                eprintln!("trail-cuda-emulator: TRAIL_EMU_CHIP: `{name}` is none of {names}");
                &A100
            }
        };
        let mut config = Config {
            seed: number("SEED", 1),
            order: variable("ORDER").map_or(Order::Seeded, |name| Config::order(&name)),
            chip,
            sms: number("SMS", chip.multiprocessors.into()) as u32,
            driver: number("DRIVER", DRIVER.into()) as i32,
            memory: number("MEMORY", chip.memory),
            host_memory: number("HOST_MEMORY", u64::MAX),
            memory_operations: !without("memops"),
            graphs: !without("graphs"),
            cooperative: !without("cooperative"),
            failures: Vec::new(),
            lost: None,
            patience: number("PATIENCE", 400_000_000),
            idle_us: number("IDLE_US", 1_000),
            background: true,
            verbose: variable("VERBOSE").is_some(),
        };
        for plan in variable("FAIL").unwrap_or_default().split(',').filter(|plan| !plan.is_empty())
        {
            if !config.plan(plan) {
                eprintln!("trail-cuda-emulator: TRAIL_EMU_FAIL: cannot read `{plan}`");
            }
        }
        config
    }

    pub(crate) fn order(name: &str) -> Order {
        match name {
            "late" => Order::Late,
            "early" => Order::Early,
            _ => Order::Seeded,
        }
    }

    fn plan(&mut self, plan: &str) -> bool {
        let parts: Vec<&str> = plan.split(':').collect();
        let target = match (parts.first(), parts.len()) {
            (Some(&"lost"), 2) => {
                self.lost = parts[1].parse().ok();
                return self.lost.is_some();
            }
            (Some(&"alloc"), 3) => Target::Allocation,
            (Some(&"launch"), 3) => Target::Launch,
            (Some(&"copy"), 3) => Target::Copy,
            (Some(&"context"), 3) => Target::Context,
            (Some(&"hang"), 2) => {
                let Ok(nth) = parts[1].parse() else { return false };
                self.failures.push(Failure { target: Target::Hang, nth, code: 0 });
                return true;
            }
            _ => return false,
        };
        let (Ok(nth), Ok(code)) = (parts[1].parse(), parts[2].parse()) else { return false };
        self.failures.push(Failure { target, nth, code });
        true
    }

    /// Counts one `target`; its planned failure when it is due.
    pub(crate) fn count(&mut self, target: Target) -> Result<(), Code> {
        let mut due = None;
        for failure in
            self.failures.iter_mut().filter(|failure| failure.target == target && failure.nth > 0)
        {
            failure.nth -= 1;
            if failure.nth == 0 {
                due = Some(failure.code);
            }
        }
        self.failures.retain(|failure| failure.nth > 0);
        due.map_or(Ok(()), Err)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("TRAIL_EMU_{name}")).ok()
}
