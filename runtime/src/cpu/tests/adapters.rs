//! Adapters against the reference pass, and the bits of rows in batches of several.

use super::*;
use crate::model::{Adapter, Projection};

/// Projections of the adapters of a model, so that rows of one step differ in them, and ranks:
/// below a register, one register, and more than a work item has.
const ADAPTERS: [(&[Projection], usize, Dtype); 3] = [
    (&Projection::ALL, 5, Dtype::F32),
    (&[Projection::V, Projection::O, Projection::Up], 16, Dtype::Bf16),
    (&[Projection::Q, Projection::K, Projection::Gate, Projection::Down], 70, Dtype::F16),
];

fn adapters(model: &Model) -> [Arc<Adapter>; 3] {
    let mut seed = 40;
    ADAPTERS.map(|(projections, rank, dtype)| {
        seed += 1;
        Arc::new(Adapter::random(&model.config, projections, rank, dtype, seed))
    })
}

/// Models that take adapters: no hybrids.
fn adaptable() -> Vec<Arc<Model>> {
    models().into_iter().filter(|model| model.config.delta_net.is_none()).collect()
}

/// Ways that differ in their products; the types of keys and values differ in nothing here.
fn ways_of_products(model: &Model) -> impl Iterator<Item = Way> {
    ways(model).filter(|&(_, compute, kv)| compute == Compute::Fast || kv == Dtype::F32)
}

/// The limits of [`logits_match_the_reference`]: an adapter adds two roundings to the some hundred
/// of a path.
#[test]
fn logits_with_an_adapter_match_the_reference() {
    for (model, compute) in adaptable().into_iter().flat_map(|model| {
        // As there: no row is near a tie of two experts.
        let every_expert = mixtures::every_expert(&model);
        [(model, Compute::Exact), (every_expert, Compute::Fast)]
    }) {
        let tokens = Request::new(0, 30).tokens;
        let own = Reference::new(&model).logits(&tokens);
        for adapter in adapters(&model) {
            let expected = Reference::new(&model).with_adapter(&adapter).logits(&tokens);
            for way in ways_of_products(&model).filter(|way| way.1 == compute) {
                let limit = if compute == Compute::Exact { 3e-5 } else { 0.1 };
                let mut backend = backend(&model, way, 2);
                let mut request = Request { adapter: Some(adapter.clone()), ..Request::new(0, 30) };
                let rows = decoded_alone(&mut backend, &mut request);
                let mut changes = 0.0_f32;
                for (position, (row, expected)) in rows.iter().zip(&expected).enumerate() {
                    let scale = expected.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                    let largest = |of: &dyn Fn(usize) -> f32| {
                        (0..row.len()).map(|at| of(at).abs()).fold(0.0, f32::max) / scale
                    };
                    let error = largest(&|at| f32::from_bits(row[at]) - expected[at]);
                    assert!(error < limit, "{way:?}, position {position}: off by {error:e}");
                    changes = changes.max(largest(&|at| own[position][at] - expected[at]));
                }
                // Of the first token q and k change nothing.
                assert!(changes > 1e-3, "changes {changes:e}");
            }
        }
    }
}

/// Rows with and without adapters in one batch, in chunks, on any number of threads.
#[test]
fn bits_do_not_depend_on_the_adapters_of_other_requests() {
    std::thread::scope(|scope| {
        for (seed, model) in adaptable().into_iter().enumerate() {
            scope.spawn(move || {
                let [all, some, wide] = adapters(&model).map(Some);
                for (index, way) in ways_of_products(&model).enumerate() {
                    let mix = match index % 3 {
                        0 => [None, all.clone(), some.clone()],
                        1 => [all.clone(), wide.clone(), all.clone()],
                        _ => [wide.clone(), some.clone(), None],
                    };
                    check_bits(&model, way, (100 * seed + index) as u64, mix);
                }
            });
        }
    });
}
