//! `trail-rt theory`: TRAIL's policy in an M/G/1 queue, by formulae and by simulation.

use clap::Args;
use serde::Serialize;
use trail_scheduler::theory::simulation::simulate;
use trail_scheduler::theory::{
    Estimate, Figure8Row, Predictor, Queue, RefinedResponse, figure8, refined_response,
};
use trail_cli::{EngineArgs, Error, Output, Table};

/// Half width of a 95 % confidence interval, in standard errors.
const Z_95: f64 = 1.96;

/// Options of `trail-rt theory`.
#[derive(Args, Debug)]
pub struct TheoryArgs {
    /// Arrival rate in jobs per mean service time, which is also the load: above 0, below 1
    #[arg(
        long,
        value_name = "RATE",
        value_parser = rate,
        required_unless_present = "sweep",
        conflicts_with = "sweep",
    )]
    lambda: Option<f64>,
    /// Distribution of a predicted size: exponential (its mean is the size) or perfect
    #[arg(long, value_name = "NAME", default_value_t = Predictor::Exponential)]
    predictor: Predictor,
    /// Print the points of TRAIL's Figure 8: both predictors, against the rate and against c
    #[arg(long, conflicts_with_all = ["predictor", "refined"])]
    sweep: bool,
    /// Evaluate TRAIL's Appendix E for the demo probe's measured confusion; --c does not act there
    #[arg(long, conflicts_with_all = ["predictor", "simulate"])]
    refined: bool,
    /// Simulate this many jobs as well, at each point
    #[arg(long, value_name = "JOBS", value_parser = clap::value_parser!(u64).range(1..=MAX_JOBS))]
    simulate: Option<u64>,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: i64,
}

/// Most jobs of a simulation: minutes a point.
const MAX_JOBS: u64 = 1_000_000_000;

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate < 1.0 => Ok(rate),
        _ => Err("expected a number above 0 and below 1: the queue has no mean otherwise".into()),
    }
}

/// Prints the figures.
pub fn run(engine: &EngineArgs, args: &TheoryArgs, json: bool) -> Result<(), Error> {
    match args.lambda {
        None => print(&Sweep::of(args), Sweep::table, json),
        Some(load) if args.refined => print(&Refined::of(load)?, Refined::table, json),
        Some(lambda) => print(&Point::of(lambda, engine, args)?, Point::table, json),
    }
}

fn print<R: Serialize>(report: &R, table: fn(&R) -> Table, json: bool) -> Result<(), Error> {
    let text = match json {
        true => serde_json::to_string(report).map_err(|error| Error::failed(error.to_string()))?,
        false => table(report).to_string(),
    };
    Output::stdout().line(text.trim_end())
}

/// The figures of one queue.
#[derive(Serialize)]
struct Point {
    mean_response: f64,
    lemma1_as_printed: f64,
    mean_memory: f64,
    preemptions_per_job: f64,
    lambda: f64,
    c: f64,
    predictor: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<Simulated>,
}

/// The figures of a simulated run.
#[derive(Serialize)]
struct Simulated {
    mean_response: Interval,
    mean_memory: Interval,
    preemptions_per_job: Interval,
    peak_memory: f64,
    jobs: u64,
}

/// Estimate with the half width of its 95 % confidence interval.
#[derive(Serialize)]
struct Interval {
    mean: f64,
    half_width: f64,
}

impl Interval {
    fn of(estimate: Estimate) -> Interval {
        Interval { mean: estimate.mean, half_width: Z_95 * estimate.standard_error }
    }

    fn cell(&self) -> String {
        format!("{:.5} ± {:.5}", self.mean, self.half_width)
    }
}

impl Point {
    fn of(lambda: f64, engine: &EngineArgs, args: &TheoryArgs) -> Result<Point, Error> {
        // The option is in single precision, which prints as the decimal that was typed.
        let c = engine.c().to_string().parse().map_err(|_| Error::usage("--c is no number"))?;
        let queue = Queue::new(lambda, c, args.predictor);
        let queue = queue.map_err(|error| Error::usage(error.to_string()))?;
        let simulated = args.simulate.map(|jobs| {
            let outcome = simulate(&queue, jobs, args.seed as u64);
            Simulated {
                mean_response: Interval::of(outcome.response),
                mean_memory: Interval::of(outcome.memory),
                preemptions_per_job: Interval::of(outcome.preemptions),
                peak_memory: outcome.peak_memory,
                jobs: outcome.jobs,
            }
        });
        Ok(Point {
            mean_response: queue.mean_response(),
            lemma1_as_printed: queue.mean_response_as_printed(),
            mean_memory: queue.mean_memory(),
            preemptions_per_job: queue.preemptions_per_job(),
            lambda,
            c,
            predictor: args.predictor.name(),
            simulated,
        })
    }

    fn table(&self) -> Table {
        let title = format!("lambda {}, c {}, {} predictions", self.lambda, self.c, self.predictor);
        let simulated = self.simulated.as_ref();
        let mut table = Table::default().group(&title, &["per job or on average", "theory"]);
        if let Some(run) = simulated {
            let title = format!("simulated, {} jobs", run.jobs);
            table = table.group(&title, &["95 % interval"]);
        }
        let mut row = |name: &str, value: f64, found: Option<String>| {
            let cells = [name.into(), format!("{value:.6}")];
            let simulated = simulated.map(|_| found.unwrap_or_default());
            table.row(cells.into_iter().chain(simulated));
        };
        let found = |of: fn(&Simulated) -> &Interval| simulated.map(|run| of(run).cell());
        row("response time, service times", self.mean_response, found(|run| &run.mean_response));
        row("  by Lemma 1 as printed", self.lemma1_as_printed, None);
        row("memory, sum of ages", self.mean_memory, found(|run| &run.mean_memory));
        row("preemptions", self.preemptions_per_job, found(|run| &run.preemptions_per_job));
        if let Some(run) = simulated {
            let cells = ["memory, peak of the run", "-", &format!("{:.5}", run.peak_memory)];
            table.row(cells.map(String::from));
        }
        table
    }
}

/// The figures of Appendix E.
#[derive(Serialize)]
struct Refined {
    mean_response: f64,
    appendix_e_as_printed: f64,
    exact_bins: f64,
    srpt: f64,
    fcfs: f64,
    mean_tokens: f64,
    lambda: f64,
}

impl Refined {
    fn of(load: f64) -> Result<Refined, Error> {
        let evaluated = refined_response(load).map_err(|error| Error::usage(error.to_string()))?;
        let RefinedResponse { mean_response, as_printed, exact_bins, srpt, fcfs, mean_tokens } =
            evaluated;
        let appendix_e_as_printed = as_printed;
        Ok(Refined {
            mean_response,
            appendix_e_as_printed,
            exact_bins,
            srpt,
            fcfs,
            mean_tokens,
            lambda: load,
        })
    }

    fn table(&self) -> Table {
        let title = format!("load {}, 1 = {:.1} tokens", self.lambda, self.mean_tokens);
        let columns = ["order", "mean response time", "FCFS / this"];
        let mut table = Table::default().group(&title, &columns);
        for (name, response) in [
            ("first come, first served", self.fcfs),
            ("refined predictions, demo probe", self.mean_response),
            ("  by Appendix E as printed", self.appendix_e_as_printed),
            ("always the true bin", self.exact_bins),
            ("exact remaining length (SRPT)", self.srpt),
        ] {
            let gain = self.fcfs / response;
            table.row([name.into(), format!("{response:.6}"), format!("{gain:.3}")]);
        }
        table
    }
}

/// The points of Figure 8.
#[derive(Serialize)]
struct Sweep {
    rows: Vec<SweepRow>,
}

#[derive(Serialize)]
struct SweepRow {
    panel: &'static str,
    predictor: &'static str,
    lambda: f64,
    c: f64,
    mean_response: f64,
    lemma1_as_printed: f64,
    mean_memory: f64,
    preemptions_per_job: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_memory: Option<f64>,
}

impl SweepRow {
    fn of(row: &Figure8Row) -> SweepRow {
        SweepRow {
            panel: row.panel.name(),
            predictor: row.predictor.name(),
            lambda: row.lambda,
            c: row.c,
            mean_response: row.mean_response,
            lemma1_as_printed: row.lemma1_as_printed,
            mean_memory: row.mean_memory,
            preemptions_per_job: row.preemptions_per_job,
            peak_memory: row.peak_memory,
        }
    }
}

impl Sweep {
    fn of(args: &TheoryArgs) -> Sweep {
        let rows = figure8(args.simulate, args.seed as u64);
        Sweep { rows: rows.iter().map(SweepRow::of).collect() }
    }

    fn table(&self) -> Table {
        let mut table = Table::default()
            .group("", &["panel", "predictor", "lambda", "c"])
            .group("mean response time", &["corrected", "as printed"])
            .group("memory", &["mean", "peak"])
            .group("", &["preemptions"]);
        for row in &self.rows {
            table.row([
                row.panel.into(),
                row.predictor.into(),
                format!("{:.2}", row.lambda),
                format!("{:.1}", row.c),
                format!("{:.5}", row.mean_response),
                format!("{:.5}", row.lemma1_as_printed),
                format!("{:.5}", row.mean_memory),
                row.peak_memory.map_or("-".into(), |peak| format!("{peak:.3}")),
                format!("{:.5}", row.preemptions_per_job),
            ]);
        }
        table
    }
}
