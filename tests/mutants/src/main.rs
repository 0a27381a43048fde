//! Checks that the tests can fail: plants known bugs in a copy of the tree, all behind one
//! run-time switch, and runs for each the test that must find it.

mod build;
mod list;
mod run;
mod tree;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use build::Binaries;
use clap::Parser;
use list::{Mutant, Test};
use run::MutantOutcome;

/// Runs at a time.
const PARALLEL: usize = 2;

/// Plants known bugs, one at a time, and checks that the tests find each.
#[derive(Parser)]
struct Options {
    /// Only the entries tagged core
    #[arg(long)]
    core: bool,
    /// Print the chosen entries and run nothing
    #[arg(long)]
    list: bool,
    /// Only these entries
    numbers: Vec<u32>,
}

fn main() -> ExitCode {
    match check(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if the tests found all chosen bugs.
fn check(options: &Options) -> Result<bool, String> {
    let lists = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = lists.ancestors().nth(2).ok_or("no repository around this crate")?;
    let all = list::read_all(lists)?;
    let is_chosen = |mutant: &&Mutant| {
        (!options.core || mutant.core)
            && (options.numbers.is_empty() || options.numbers.contains(&mutant.number))
    };
    let chosen: Vec<&Mutant> = all.iter().filter(is_chosen).collect();
    if options.list {
        chosen.iter().for_each(|mutant| println!("{:4}  {}", mutant.number, mutant.description));
        return Ok(true);
    }
    let work = root.join("target/mutants");
    let (tree, logs) = (work.join("tree"), work.join("logs"));
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let begin = Instant::now();
    tree::plant(root, &tree, &all)?;
    let binaries = build::build(&tree, &work.join("build"), &chosen)?;
    println!("built in {:.0} s", begin.elapsed().as_secs_f64());
    let failing = check_unplanted(&binaries, &chosen, &logs)?;
    let (untested, sound): (Vec<&Mutant>, Vec<&Mutant>) =
        chosen.iter().partition(|mutant| failing.contains(&mutant.test));
    for mutant in &untested {
        println!("{:4}  not run: its test does not pass without a bug", mutant.number);
    }
    let survived = check_planted(&binaries, &sound, &tree, &logs)?;
    let (found, not_run) = (sound.len() - survived, untested.len());
    let seconds = begin.elapsed().as_secs_f64();
    println!("{found} found, {survived} survived, {not_run} not run, {seconds:.0} s");
    Ok(survived + not_run == 0)
}

/// Runs each named test without a bug. Returns those that do not pass.
fn check_unplanted<'a>(
    binaries: &Binaries,
    chosen: &[&'a Mutant],
    logs: &Path,
) -> Result<BTreeSet<&'a Test>, String> {
    let tests: BTreeSet<&Test> = chosen.iter().map(|mutant| &mutant.test).collect();
    let tests: Vec<&Test> = tests.into_iter().collect();
    let failed = Mutex::new(BTreeSet::new());
    in_parallel(tests.len(), |at| {
        let Test { package, target, filters } = tests[at];
        let log = logs.join(format!("unplanted-{at}.txt"));
        let (outcome, seconds) = run::run(binaries.of(tests[at]), filters, (0, None), &log)?;
        if !matches!(outcome, MutantOutcome::Passed(1..)) {
            let filters = filters.join(" ");
            println!("without a bug: {package} {target} {filters}: {outcome:?}, {seconds:.1} s");
            failed.lock().unwrap_or_else(PoisonError::into_inner).insert(tests[at]);
        }
        Ok(())
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs the test of each bug. Returns the number of those that survived.
fn check_planted(
    binaries: &Binaries,
    chosen: &[&Mutant],
    tree: &Path,
    logs: &Path,
) -> Result<usize, String> {
    let survived = AtomicUsize::new(0);
    in_parallel(chosen.len(), |at| {
        let Mutant { number, description, test, .. } = chosen[at];
        let log: PathBuf = logs.join(format!("{number}.txt"));
        let ptx = tree::edited_ptx(tree, logs, chosen[at])?;
        let planted = (*number, ptx.as_deref());
        let (outcome, seconds) = run::run(binaries.of(test), &test.filters, planted, &log)?;
        let verdict = match outcome {
            MutantOutcome::Passed(_) => {
                survived.fetch_add(1, Ordering::Relaxed);
                "SURVIVED".to_owned()
            }
            MutantOutcome::Failed(name) => format!("found by {name}"),
            MutantOutcome::TimedOut => "found at the limit of time".to_owned(),
        };
        println!("{number:4}  {seconds:5.1} s  {description}: {verdict}");
        Ok(())
    })?;
    Ok(survived.into_inner())
}

/// Calls `work` for each index below `count`, from [`PARALLEL`] threads. Returns the first error.
fn in_parallel(
    count: usize,
    work: impl Fn(usize) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let one_by_one = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return Ok(());
            }
            work(at)?;
        }
    };
    std::thread::scope(|scope| {
        let threads = [(); PARALLEL].map(|()| scope.spawn(one_by_one));
        threads.into_iter().try_for_each(|thread| thread.join().expect("a run does not panic"))
    })
}
