//! Models that do not fit their configuration.

use super::*;

#[test]
fn unfit_models_are_refused() {
    let options = *backend(&models()[0], EXACT, 1).options();
    let refused = |change: &dyn Fn(&mut Model)| {
        let mut model = (*models()[0]).clone();
        change(&mut model);
        CpuForward::new(Arc::new(model), options).err().unwrap()
    };
    let other = &models()[1];
    assert!(refused(&|model| model.config.num_kv_heads = 3).contains("heads"));
    assert!(refused(&|model| model.config.windows = vec![]).contains("windows"));
    assert!(refused(&|model| model.config.vocab_size = 54).contains("embedding"));
    assert!(
        refused(&|model| model.weights.layers[1].k = other.weights.layers[0].k.clone())
            .contains("k of layer 1")
    );
    assert!(refused(&|model| model.weights.layers.truncate(2)).contains("blocks"));
    let family = every_feature();
    let post_norms = &family.weights.layers[1].post_norms;
    let extra = |model: &mut Model| model.weights.layers[1].post_norms = post_norms.clone();
    assert!(refused(&extra).contains("layer 1: Llama, post norms: true"));
    let refused = |change: &dyn Fn(&mut LayerWeights)| {
        let mut model = (*family).clone();
        change(&mut model.weights.layers[2]);
        CpuForward::new(Arc::new(model), options).err().unwrap()
    };
    assert!(refused(&|layer| layer.post_norms = None).contains("post norms: false"));
    assert!(refused(&|layer| layer.qk_norm = None).contains("layer 2: Gemma3 without"));
    let cut = |vector: &mut Vec<f32>| vector.truncate(7);
    assert!(refused(&|layer| cut(&mut layer.qk_norm.as_mut().unwrap().k)).contains("7 values"));
    assert!(refused(&|layer| cut(&mut layer.qkv_bias.as_mut().unwrap().v)).contains("not 40"));
    assert!(refused(&|layer| cut(&mut layer.post_norms.as_mut().unwrap().mlp)).contains("not 72"));
}
