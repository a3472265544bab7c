//! Ways to break an export, each with a name.

use std::os::unix::fs::symlink;

use weir_frontend::onnx::proto::{
    AttributeProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    attribute_kind,
};

use super::{Change, Export};

const GQA: &str = "GroupQueryAttention";
const NORM: &str = "SimplifiedLayerNormalization";
const NBITS: &str = "MatMulNBits";
const QKV: &str = "layers.0.attn.qkv_proj.MatMul.weight_Q4";
const SCALES: &str = "layers.0.attn.qkv_proj.MatMul.weight_scales";

fn extra(export: &mut Export, op: &str, name: &str) {
    let attribute = AttributeProto {
        name: name.into(),
        i: Some(1),
        kind: attribute_kind::INT,
        ..AttributeProto::default()
    };
    export.node(op).attribute.push(attribute);
}

fn opset(export: &mut Export, index: usize, version: i64) {
    export.model.opset_import[index].version = version;
}

/// One dimension of an input or output of the graph.
fn size(export: &mut Export, name: &str, dimension: usize, value: i64) {
    let graph = export.graph();
    let mut values = graph.input.iter_mut().chain(&mut graph.output);
    let value_info = values.find(|value| value.name == name).expect("the fixture has the value");
    let tensor = value_info.kind.as_mut().and_then(|kind| kind.tensor_type.as_mut());
    let shape = tensor.and_then(|tensor| tensor.shape.as_mut()).expect("it has a shape");
    shape.dim[dimension].dim_param = None;
    shape.dim[dimension].dim_value = Some(value);
}

fn element(export: &mut Export, name: &str, element: i32) {
    let graph = export.graph();
    let value = graph.input.iter_mut().find(|value| value.name == name).expect("an input");
    let tensor = value.kind.as_mut().and_then(|kind| kind.tensor_type.as_mut());
    tensor.expect("a tensor").elem_type = element;
}

/// Every way; most touch one field.
pub const VARIANTS: &[(&str, Change)] = &[
    // The file and its versions.
    ("no graph", |e, _| e.model.graph = None),
    ("no nodes", |e, _| e.graph().node.clear()),
    ("no initialisers", |e, _| e.graph().initializer.clear()),
    ("no inputs", |e, _| e.graph().input.clear()),
    ("no outputs", |e, _| e.graph().output.clear()),
    ("no opsets", |e, _| e.model.opset_import.clear()),
    ("opset zero", |e, _| opset(e, 0, 0)),
    ("opset negative", |e, _| opset(e, 0, -3)),
    ("opset of the future", |e, _| opset(e, 0, 9000)),
    ("opset of the past", |e, _| opset(e, 0, 3)),
    ("contrib opset of the future", |e, _| opset(e, 1, 77)),
    ("contrib opset missing", |e, _| e.model.opset_import.truncate(1)),
    ("ir version of the future", |e, _| e.model.ir_version = 1 << 40),
    ("ir version negative", |e, _| e.model.ir_version = -1),
    // Order and names.
    ("cycle of two", |e, _| {
        let made = e.node("Sigmoid").output[0].clone();
        e.node(NORM).input[0] = made;
    }),
    ("cycle of one", |e, _| {
        let made = e.node("Sigmoid").output[0].clone();
        e.node("Sigmoid").input[0] = made;
    }),
    ("undefined input", |e, _| e.node("Sigmoid").input[0] = "nowhere".into()),
    ("undefined output", |e, _| e.graph().output[0].name = "nowhere".into()),
    ("value defined twice", |e, _| {
        let made = e.node("Mul").output[0].clone();
        e.node("Sigmoid").output[0] = made;
    }),
    ("initialiser defined twice", |e, _| {
        let copy = e.tensor(QKV).clone();
        e.graph().initializer.push(copy);
    }),
    ("input listed twice", |e, _| {
        let copy = e.graph().input[0].clone();
        e.graph().input.push(copy);
    }),
    ("output listed twice", |e, _| {
        let copy = e.graph().output[0].clone();
        e.graph().output.push(copy);
    }),
    ("logits under another name", |e, _| {
        e.node("Sigmoid").output[0] = "logits".into();
    }),
    // Operators and attributes.
    ("layer that reads the tokens", |e, _| {
        let width = e.tensor("input_layernorm.weight").dims[0];
        let table = TensorProto {
            name: "rows".into(),
            data_type: e.tensor("input_layernorm.weight").data_type,
            dims: vec![512, width],
            raw_data: Some(vec![0; 512 * width as usize * 2].into()),
            ..TensorProto::default()
        };
        let node = |op: &str, inputs: [&str; 2], output: &str| NodeProto {
            name: output.into(),
            op_type: op.into(),
            input: inputs.map(str::to_owned).to_vec(),
            output: vec![output.into()],
            ..NodeProto::default()
        };
        let product = e.node(NBITS);
        let hidden = std::mem::replace(&mut product.input[0], "both".into());
        let graph = e.graph();
        graph.initializer.push(table);
        let at = graph.node.iter().position(|node| node.op_type == NBITS).expect("there is one");
        graph.node.insert(at, node("Mul", [&hidden, "looked up"], "both"));
        graph.node.insert(at, node("Gather", ["rows", "input_ids"], "looked up"));
    }),
    ("unknown operator", |e, _| e.node("Sigmoid").op_type = "Mystery".into()),
    ("empty operator", |e, _| e.node("Sigmoid").op_type.clear()),
    ("unknown domain", |e, _| {
        let domain = "org.example".to_owned();
        e.node("Sigmoid").domain = domain.clone();
        e.model.opset_import.push(OperatorSetIdProto { domain, version: 1 });
    }),
    ("domain without opset", |e, _| e.node("Sigmoid").domain = "org.example".into()),
    ("training operator", |e, _| e.node("Sigmoid").op_type = "DropoutGrad".into()),
    ("recurrent operator", |e, _| e.node("Sigmoid").op_type = "LSTM".into()),
    ("unknown attribute of attention", |e, _| extra(e, GQA, "fast")),
    ("unknown attribute of a product", |e, _| extra(e, NBITS, "fast")),
    ("unknown attribute of a norm", |e, _| extra(e, NORM, "fast")),
    ("attribute twice", |e, _| extra(e, GQA, "num_heads")),
    ("attention without attributes", |e, _| e.node(GQA).attribute.clear()),
    ("product without attributes", |e, _| e.node(NBITS).attribute.clear()),
    ("attention without inputs", |e, _| e.node(GQA).input.clear()),
    ("attention without cache", |e, _| e.node(GQA).input[3].clear()),
    ("attention without lengths", |e, _| e.node(GQA).input[5].clear()),
    ("attention with half a rotary table", |e, _| e.node(GQA).input[8].clear()),
    ("attention with half of its norms", |e, _| e.node(GQA).input[15].clear()),
    ("attention without outputs", |e, _| e.node(GQA).output.clear()),
    ("product without weights", |e, _| e.node(NBITS).input.truncate(1)),
    ("product without scales", |e, _| e.node(NBITS).input.truncate(2)),
    ("norm without weights", |e, _| e.node(NORM).input.truncate(1)),
    ("split without outputs", |e, _| e.node("Split").output.clear()),
    ("split of a missing axis", |e, _| e.int("Split", "axis", 9)),
    ("cast to an unknown type", |e, _| e.int("Cast", "to", 4000)),
    ("cast to text", |e, _| e.int("Cast", "to", 8)),
    ("gather of a missing axis", |e, _| e.int("Gather", "axis", -7)),
    // Meanings that cannot be.
    ("no heads", |e, _| e.int(GQA, "num_heads", 0)),
    ("negative heads", |e, _| e.int(GQA, "num_heads", -4)),
    ("heads that do not divide", |e, _| e.int(GQA, "num_heads", 3)),
    ("heads beyond number", |e, _| e.int(GQA, "num_heads", i64::MAX)),
    ("no key heads", |e, _| e.int(GQA, "kv_num_heads", 0)),
    ("key heads that do not divide", |e, _| e.int(GQA, "kv_num_heads", 3)),
    ("more key heads than heads", |e, _| e.int(GQA, "kv_num_heads", 8)),
    ("negative key heads", |e, _| e.int(GQA, "kv_num_heads", i64::MIN)),
    ("window of no positions", |e, _| e.int(GQA, "local_window_size", 0)),
    ("negative window", |e, _| e.int(GQA, "local_window_size", -2)),
    ("window beyond number", |e, _| e.int(GQA, "local_window_size", i64::MAX)),
    ("rotary neither on nor off", |e, _| e.int(GQA, "do_rotary", 5)),
    ("rotary off with tables", |e, _| e.int(GQA, "do_rotary", 0)),
    ("interleaving neither on nor off", |e, _| e.int(GQA, "rotary_interleaved", 9)),
    ("scale is not a number", |e, _| e.float(GQA, "scale", f32::NAN)),
    ("scale is infinite", |e, _| e.float(GQA, "scale", f32::INFINITY)),
    ("soft-cap is not a number", |e, _| e.float(GQA, "softcap", f32::NAN)),
    ("soft-cap is negative", |e, _| e.float(GQA, "softcap", -30.0)),
    ("epsilon is not a number", |e, _| e.float(NORM, "epsilon", f32::NAN)),
    ("epsilon is negative", |e, _| e.float(NORM, "epsilon", -1.0)),
    ("epsilon is infinite", |e, _| e.float(NORM, "epsilon", f32::INFINITY)),
    ("epsilon of the query norm is negative", |e, _| e.float(GQA, "qk_norm_epsilon", -1.0)),
    ("norm over the first axis", |e, _| e.int(NORM, "axis", 0)),
    ("block of no elements", |e, _| e.int(NBITS, "block_size", 0)),
    ("block of seven elements", |e, _| e.int(NBITS, "block_size", 7)),
    ("negative block", |e, _| e.int(NBITS, "block_size", -32)),
    ("weights of no bits", |e, _| e.int(NBITS, "bits", 0)),
    ("weights of 99 bits", |e, _| e.int(NBITS, "bits", 99)),
    ("product of no depth", |e, _| e.int(NBITS, "K", 0)),
    ("product of another depth", |e, _| e.int(NBITS, "K", 128)),
    ("product of negative width", |e, _| e.int(NBITS, "N", -256)),
    ("product of absurd width", |e, _| e.int(NBITS, "N", i64::MAX)),
    ("embedding over another axis", |e, _| e.int("GatherBlockQuantized", "gather_axis", 1)),
    ("embedding of odd blocks", |e, _| e.int("GatherBlockQuantized", "block_size", 24)),
    // Inputs and outputs.
    ("ids are floats", |e, _| element(e, "input_ids", 1)),
    ("ids are texts", |e, _| element(e, "input_ids", 8)),
    ("ids of an unknown type", |e, _| element(e, "input_ids", 999)),
    ("mask is floats", |e, _| element(e, "attention_mask", 1)),
    ("cache of integers", |e, _| element(e, "past_key_values.0.key", 7)),
    ("cache of other heads", |e, _| size(e, "past_key_values.0.key", 1, 3)),
    ("cache of no heads", |e, _| size(e, "past_key_values.0.key", 1, 0)),
    ("cache of another width", |e, _| size(e, "past_key_values.0.value", 3, 48)),
    ("cache of fixed length", |e, _| size(e, "past_key_values.1.key", 2, 17)),
    ("negative sequence", |e, _| size(e, "input_ids", 1, -1)),
    ("batch of nine", |e, _| size(e, "input_ids", 0, 9)),
    ("cache does not come out", |e, _| e.graph().output.truncate(2)),
    ("caches crossed", |e, _| {
        let [a, b] = ["present.0.key", "present.0.value"].map(String::from);
        (e.node(GQA).output[1], e.node(GQA).output[2]) = (b, a);
    }),
    ("one cache for two layers", |e, _| {
        let nodes = &mut e.graph().node;
        let last = nodes.iter_mut().rfind(|n| n.op_type == GQA).expect("two layers");
        last.input[3] = "past_key_values.0.key".into();
    }),
    // Tensors.
    ("weights without a type", |e, _| e.tensor(QKV).data_type = 0),
    ("weights of an unknown type", |e, _| e.tensor(QKV).data_type = 1234),
    ("weights of texts", |e, _| e.tensor(QKV).data_type = 8),
    ("weights of floats", |e, _| e.tensor(QKV).data_type = 1),
    ("weights of another shape", |e, _| e.tensor(QKV).dims = vec![128, 4, 16]),
    ("weights of one dimension", |e, _| e.tensor(QKV).dims = vec![8192]),
    ("weights of zero rows", |e, _| e.tensor(QKV).dims[0] = 0),
    ("weights of negative rows", |e, _| e.tensor(QKV).dims[0] = -256),
    ("weights of absurd shape", |e, _| e.tensor(QKV).dims = vec![i64::MAX, i64::MAX, 2]),
    ("weights too large for memory", |e, _| e.tensor(QKV).dims = vec![1 << 50, 2, 16]),
    ("scales of another shape", |e, _| e.tensor(SCALES).dims = vec![2, 256]),
    ("scales of integers", |e, _| e.tensor(SCALES).data_type = 5),
    ("scales are not numbers", |e, _| e.fill(SCALES, [0x00, 0x7e])),
    ("scales are infinite", |e, _| e.fill(SCALES, [0x00, 0x7c])),
    ("norm weights are not numbers", |e, _| {
        e.fill("layers.0.input_layernorm.weight", [0x01, 0x7e]);
    }),
    ("norm weights of another width", |e, _| {
        e.tensor("layers.0.input_layernorm.weight").dims = vec![32];
    }),
    ("query norm of another width", |e, _| {
        e.tensor("layers.0.attn.q_norm.layernorm.weight").dims = vec![16];
    }),
    ("rotary table of another width", |e, _| e.tensor("cos_cache").dims = vec![2048, 8]),
    ("rotary table too short", |e, _| e.tensor("sin_cache").dims = vec![16, 16]),
    ("rotary table is not numbers", |e, _| e.fill("cos_cache", [0x00, 0x7e])),
    // External data.
    ("data missing", |e, _| e.files.retain(|(name, _)| name != "model.onnx.data")),
    ("data empty", |e, _| e.file("model.onnx.data").clear()),
    ("data short", |e, _| e.file("model.onnx.data").truncate(60_000)),
    ("data above", |e, _| *e.external(QKV, "location") = "../model.onnx.data".into()),
    ("data above, hidden", |e, _| *e.external(QKV, "location") = "a/../../x".into()),
    ("data absolute", |e, _| *e.external(QKV, "location") = "/etc/passwd".into()),
    ("data without a place", |e, _| e.external(QKV, "location").clear()),
    ("data with a zero byte", |e, _| *e.external(QKV, "location") = "a\0b".into()),
    ("data is the folder", |e, _| *e.external(QKV, "location") = ".".into()),
    ("data offset beyond", |e, _| *e.external(QKV, "offset") = "99999999".into()),
    ("data offset negative", |e, _| *e.external(QKV, "offset") = "-8".into()),
    ("data offset overflows", |e, _| *e.external(QKV, "offset") = u64::MAX.to_string()),
    ("data offset no number", |e, _| *e.external(QKV, "offset") = "many".into()),
    ("data length wrong", |e, _| *e.external(QKV, "length") = "3".into()),
    ("data overlapping", |e, _| {
        let offset = e.external(QKV, "offset").clone();
        *e.external(SCALES, "offset") = offset;
    }),
    ("data key unknown", |e, _| {
        let (key, value) = ("compression".into(), "zip".into());
        e.tensor(QKV).external_data.push(StringStringEntryProto { key, value });
    }),
    ("data not marked", |e, _| e.tensor(QKV).data_location = 0),
    ("data linked", |e, folder| {
        e.files.retain(|(name, _)| name != "model.onnx.data");
        symlink("/etc/hostname", folder.join("model.onnx.data")).expect("a link can be made");
    }),
    ("data linked in a circle", |e, folder| {
        e.files.retain(|(name, _)| name != "model.onnx.data");
        symlink("model.onnx.data", folder.join("model.onnx.data")).expect("a link can be made");
    }),
    // Files beside the model.
    ("tokenizer empty", |e, _| e.file("tokenizer.json").clear()),
    ("tokenizer no JSON", |e, _| *e.file("tokenizer.json") = b"{".to_vec()),
    ("tokenizer a list", |e, _| *e.file("tokenizer.json") = b"[]".to_vec()),
    ("tokenizer without a model", |e, _| *e.file("tokenizer.json") = b"{}".to_vec()),
    ("tokenizer of an unknown kind", |e, _| {
        *e.file("tokenizer.json") = br#"{"model":{"type":"Oracle","vocab":{}}}"#.to_vec();
    }),
    ("tokenizer not UTF-8", |e, _| *e.file("tokenizer.json") = vec![0xff, 0xfe]),
    ("tokenizer nested without end", |e, _| *e.file("tokenizer.json") = vec![b'['; 200_000]),
    ("configuration no JSON", |e, _| *e.file("genai_config.json") = b"{\"a\":".to_vec()),
    ("configuration a list", |e, _| *e.file("genai_config.json") = b"[]".to_vec()),
    ("temperature a text", |e, _| {
        let json = br#"{"model": {}, "search": {"temperature": "hot"}}"#;
        *e.file("genai_config.json") = json.to_vec();
    }),
    ("template not UTF-8", |e, _| *e.file("chat_template.jinja") = vec![0xff]),
];
