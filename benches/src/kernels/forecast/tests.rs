use super::steps::Products;
use super::*;
use crate::kernels::products::{self, Family};

fn forecaster(chip: ForecastChip) -> Forecaster {
    Forecaster::new(chip.rates()).expect("reports")
}

fn llama() -> ModelConfig {
    ModelConfig::named("llama3-8b").expect("a shape")
}

/// Share of its limit that the forecast of product `op` is.
fn product_share(forecaster: &Forecaster, op: &str, rows: usize, family: Family) -> f64 {
    let plans = products::plans(&llama(), rows, &forecaster.rates.chip);
    let planned = plans.iter().find(|planned| planned.op == op && planned.family == family);
    let plan = planned.expect("a product of the layer").plan.launch;
    let us = forecaster.launch(&plan, rows).expect("a forecast").seconds * 1e6;
    let rates = forecaster.rates;
    share(&[plan], us, rates.read_gb_per_s(), rates.tflops(&plan)).1
}

fn step_share(forecaster: &Forecaster, rows: usize, by: Products) -> f64 {
    let step = steps::step(forecaster, &llama(), rows, by).expect("a forecast");
    step["share"].as_f64().expect("a share")
}

/// Few rows stream their weights at the memory's rate, less what a launch costs.
#[test]
fn few_rows_are_near_their_limit() {
    for chip in [ForecastChip::A100, ForecastChip::H200] {
        let forecaster = forecaster(chip);
        for (op, least) in
            [("qkv", 0.7), ("o", 0.6), ("gate_up", 0.88), ("down", 0.82), ("lm_head", 0.88)]
        {
            for rows in [1, 16, 32] {
                let share = product_share(&forecaster, op, rows, Family::Portable);
                let what = format!("{op} of {rows} rows, {}: {share:.3}", chip.name());
                assert!((least..1.0).contains(&share), "{what}");
            }
        }
        assert!(step_share(&forecaster, 1, Products::Portable) > 0.75);
    }
}

/// The product of 256 tokens waits for L2 less, and for nothing more.
#[test]
fn clusters_read_less_of_l2() {
    let now = forecaster(ForecastChip::H200);
    for op in ["qkv", "o", "gate_up", "down"] {
        let [alone, clusters] =
            [Family::Wgmma, Family::Cluster].map(|family| product_share(&now, op, 2048, family));
        assert!(clusters > alone + 0.02, "{op}: {clusters}, alone {alone}");
    }
}

/// Every kernel of a step but the small ones has a forecast, above its limit.
#[test]
fn the_kernels_of_a_step_are_known() {
    for chip in [ForecastChip::A100, ForecastChip::H100, ForecastChip::H200] {
        let forecaster = forecaster(chip);
        for config in ["demo", "llama3.2-1b", "llama3-8b"].map(ModelConfig::named) {
            let config = config.expect("a shape");
            for rows in [1, 7, 33, 65, 200, 300, 5000] {
                let step = steps::step(&forecaster, &config, rows, Products::Portable)
                    .expect("a forecast");
                let share = step["share"].as_f64().expect("a share");
                assert!(share > 0.0 && share < 1.0, "{rows} rows: {step}");
            }
        }
    }
}

/// A measured rate replaces the assumed one.
#[test]
fn measured_rates_are_used() {
    let assumed = ForecastChip::H200.rates();
    let tflops = HMMA_FLOPS * 4.0 / assumed.hmma_clocks * 132.0 * assumed.clock_hz / 1e12;
    let same = Rates::measured(&assumed.chip, assumed.read_gb_per_s(), tflops);
    assert!((same.hmma_clocks - assumed.hmma_clocks).abs() < 1e-9);
    let half = Rates::measured(&assumed.chip, assumed.read_gb_per_s() / 2.0, tflops);
    let half = Forecaster::new(half).expect("the manifest's reports");
    let plans = products::plans(&llama(), 1, &assumed.chip);
    let gate_up = plans.iter().find(|planned| planned.op == "gate_up").expect("its plan").plan;
    let time = |of: &Forecaster| of.launch(&gate_up.launch, 1).expect("a forecast").seconds;
    assert!(time(&half) > 1.8 * time(&forecaster(ForecastChip::H200)));
}

/// Forecast times of the cases of the attention and small parts, by op, kernel, rows and context.
fn cases_of(forecaster: &Forecaster) -> Vec<(Vec<LaunchPlan>, &'static str, usize, f64)> {
    let chip = &forecaster.rates.chip;
    let max = super::super::cases::MaxShape { rows: 8192, context: 32_768 };
    let mut cases = super::super::attention::attention(&llama(), chip, max);
    cases.extend(super::super::sampling::sampling(&llama(), chip, max));
    let times = cases.iter().map(|case| {
        let plans = case.launches();
        let forecast = forecaster.op(case.op(), &plans, case.rows()).expect("a forecast");
        (plans, case.op(), case.rows(), forecast.seconds)
    });
    times.collect()
}

/// Behind a long context: where whole tiles leave multiprocessors without work, or some with twice
/// that of others, a cut launch and its merge take less time. Elsewhere a cut only fills second
/// places, for which the model has no gain, and costs its edges.
#[test]
fn cut_contexts_are_faster() {
    for chip in [ForecastChip::A100, ForecastChip::H100, ForecastChip::H200] {
        let cases = cases_of(&forecaster(chip));
        let mut compared = 0;
        for (plans, _, rows, seconds) in &cases {
            let [cut, _merge] = plans[..] else { continue };
            if cut.shape.extent("context") < Some(4 * *rows as u64) {
                continue;
            }
            let whole = cases.iter().find(|(plans, _, of, _)| {
                plans[0].kernel == cut.kernel.replace("_split", "")
                    && (*of, plans[0].flops) == (*rows, cut.flops)
            });
            let (.., whole) = whole.expect("the same without a cut");
            assert!(*seconds < 1.06 * whole, "{}: {cut}: {seconds}, {whole}", chip.name());
            compared += usize::from(*seconds < 0.75 * whole);
        }
        let least = if chip == ForecastChip::A100 { 3 } else { 2 };
        assert!(compared >= least, "{}: {compared} contexts gain a quarter", chip.name());
    }
}

/// A team's top-p takes less time than that of one block, and greedy choice less than either.
#[test]
fn the_sampler_is_forecast() {
    for chip in [ForecastChip::A100, ForecastChip::H100, ForecastChip::H200] {
        let cases = cases_of(&forecaster(chip));
        let seconds = |op: &str, team: bool| {
            let found = cases.iter().find(|(plans, of, rows, _)| {
                *of == op && *rows == 1 && plans[2].cooperative == team
            });
            found.expect("a case").3
        };
        let [greedy, whole] = ["sample_greedy", "sample_top_p"].map(|op| seconds(op, false));
        let team = seconds("sample_top_p", true);
        assert!(greedy < team && team < whole, "{}: {greedy} {team} {whole}", chip.name());
    }
}
