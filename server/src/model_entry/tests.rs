//! Loads and unloads of the bundled model, without HTTP.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use trail_cli::{ModelArgs, RankingArgs, Setup};
use trail_runtime::engine::{Engine, EngineConfig};
use trail_runtime::model::Model;

use super::*;
use crate::model_source::Loaded;

fn loaded(counters: Arc<Counters>) -> Result<Loaded, Error> {
    let setup = Setup::load(&ModelArgs::default())?;
    let config = EngineConfig { kv_blocks: Some(64), counters, ..EngineConfig::default() };
    let engine = Engine::new(setup.model.clone(), config)?;
    Ok((setup, engine))
}

/// The entry of the bundled model, whose loads are counted, and fail while they are to.
fn entry(loads: &Arc<AtomicUsize>, fails: &Arc<AtomicBool>) -> Arc<ModelEntry> {
    let first = loaded(Arc::default()).expect("the bundled model");
    let (loads, fails, counters) = (loads.clone(), fails.clone(), first.1.counters().clone());
    let load = Box::new(move || {
        loads.fetch_add(1, Ordering::SeqCst);
        match fails.load(Ordering::SeqCst) {
            true => Err(Error::failed("the disk is gone")),
            false => loaded(counters.clone()),
        }
    });
    let source = ModelSource {
        names: vec!["a".into()],
        adapters: Vec::new(),
        loaded: first,
        load,
        ranking: RankingArgs::default(),
    };
    ModelEntry::new(source, &["a".into()], false, Formats::default()).expect("an entry")
}

/// The model's files and everything built on them, while anything holds them.
fn files(model: &ModelUse) -> Weak<Model> {
    Arc::downgrade(model.engine.model())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_unloaded_whole_after_its_last_use_and_loaded_once() {
    let (loads, fails) = (Arc::default(), Arc::default());
    let entry = entry(&loads, &fails);
    let first = entry.acquire().await.expect("loaded");
    let left = files(&first);
    let second = first.clone();
    let unloading = tokio::spawn({
        let entry = entry.clone();
        async move { entry.unload().await }
    });
    while entry.state() == ModelState::Loaded {
        tokio::task::yield_now().await;
    }
    // Those that arrive now wait for the unload, and for one load after it.
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let entry = entry.clone();
            tokio::spawn(async move { entry.acquire().await.map(|model| files(&model)) })
        })
        .collect();
    drop(first);
    assert_eq!((entry.state(), left.strong_count() > 0), (ModelState::Unloading, true));
    drop(second);
    unloading.await.expect("unloaded");
    assert!(left.upgrade().is_none(), "the model's files are mapped");
    for waiting in waiting {
        waiting.await.expect("no panic").expect("loaded again");
    }
    assert_eq!((loads.load(Ordering::SeqCst), entry.state()), (1, ModelState::Loaded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_load_is_reported_and_tried_again() {
    let (loads, fails) = (Arc::default(), Arc::new(AtomicBool::new(true)));
    let entry = entry(&loads, &fails);
    entry.unload().await;
    entry.unload().await;
    for attempt in 1..3 {
        let error = entry.acquire().await.err().expect("the load fails");
        assert_eq!(error.status(), 503);
        assert_eq!(error.message(), "the model 'a' could not be loaded: the disk is gone");
        assert_eq!((loads.load(Ordering::SeqCst), entry.state()), (attempt, ModelState::Unloaded));
    }
    fails.store(false, Ordering::SeqCst);
    entry.acquire().await.expect("loaded");
    assert_eq!(loads.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_uses_is_idle() {
    let (loads, fails) = (Arc::default(), Arc::default());
    let entry = entry(&loads, &fails);
    let model = entry.acquire().await.expect("loaded");
    entry.unload_idle(Duration::ZERO);
    assert_eq!(entry.state(), ModelState::Loaded, "in use");
    drop(model);
    entry.unload_idle(Duration::from_secs(3600));
    assert_eq!(entry.state(), ModelState::Loaded, "used a moment ago");
    entry.unload_idle(Duration::ZERO);
    assert_ne!(entry.state(), ModelState::Loaded);
    entry.acquire().await.expect("loaded again");
}
