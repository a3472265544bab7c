//! The tiny model, broken: each way gives an error that names the place, and none a panic.
//!
//! `broken.expected` holds the rendered errors; `BLESS=1 cargo test` rewrites it.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use bytes::Bytes;
use prost::Message;
use weir_frontend::onnx::proto::*;
use weir_frontend::{ImportError, ImportOptions, Imported, import};

use crate::tiny::*;

/// Imports what `prepare` leaves in an empty directory; the error speaks of `MODEL`.
fn attempt(prepare: impl FnOnce(&Path)) -> Result<Imported, String> {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path());
    import(directory.path(), &ImportOptions::default()).map_err(|error| {
        assert!(!error.problems.is_empty());
        error.to_string().replace(&directory.path().display().to_string(), "MODEL")
    })
}

type Break = fn(&mut Tiny);

/// A choice between two graphs that read one name and define another.
fn choose(t: &mut Tiny, reads: &str, defines: &str) {
    let branch = GraphProto {
        name: format!("to {defines}"),
        node: vec![node("Neg", "", &[reads], &[defines])],
        output: vec![ValueInfoProto { name: defines.into(), kind: None }],
        ..GraphProto::default()
    };
    let mut choice = node("If", "", &["one"], &[&format!("chosen {defines}")]);
    choice.attribute = vec![graph("then_branch", branch.clone()), graph("else_branch", branch)];
    t.graph().node.push(choice);
}

/// Declares the cached keys as a buffer of 64 rows.
fn fix_length(t: &mut Tiny) {
    t.graph().input[2] = value("past_key_values.0.key", FLOAT, &["batch", "1", "64", "16"]);
}

fn axes(name: &str, ints: &[i64]) -> AttributeProto {
    let (name, ints, kind) = (name.into(), ints.to_vec(), attribute_kind::INTS);
    AttributeProto { name, ints, kind, ..AttributeProto::default() }
}

/// Ways to break the messages.
const BREAKS: &[(&str, Break)] = &[
    // The file.
    ("no ir version", |t| t.model.ir_version = 0),
    ("ir version of the future", |t| t.model.ir_version = 99),
    ("no graph", |t| t.model.graph = None),
    ("no opsets", |t| t.model.opset_import.clear()),
    ("opset zero", |t| t.model.opset_import[0].version = 0),
    ("opset of the future", |t| t.model.opset_import[0].version = 99),
    ("opset too old", |t| t.model.opset_import[0].version = 5),
    ("two opsets of one domain", |t| {
        let version = 21;
        t.model.opset_import.push(OperatorSetIdProto { domain: "ai.onnx".into(), version });
    }),
    ("domain without opset", |t| t.model.opset_import.truncate(1)),
    ("training information", |t| t.model.training_info.push(Ignored {})),
    ("function that calls itself", |t| {
        let (name, domain): (String, String) = ("Mixer".into(), "local".into());
        let node = vec![node("Mixer", "local", &["x"], &["y"])];
        let (input, output) = (vec!["x".into()], vec!["y".into()]);
        let mixer = FunctionProto { name, domain, input, output, node, ..Default::default() };
        t.model.functions.push(mixer);
        t.model.opset_import.push(OperatorSetIdProto { domain: "local".into(), version: 1 });
        t.node("/hidden").op_type = "Mixer".into();
        t.node("/hidden").domain = "local".into();
    }),
    ("function of another opset", |t| {
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 18 }];
        let (name, domain) = ("Mixer".into(), "local".into());
        let mixer = FunctionProto { name, domain, opset_import, ..FunctionProto::default() };
        t.model.functions.push(mixer);
    }),
    ("function defined twice", |t| {
        let mixer = FunctionProto { name: "Mixer".into(), ..FunctionProto::default() };
        t.model.functions = vec![mixer.clone(), mixer];
    }),
    // Names.
    ("inner graph defines a name from around it", |t| choose(t, "qkv", "hidden")),
    ("inner graph reads a name of a later inner graph", |t| {
        choose(t, "second", "first");
        choose(t, "qkv", "second");
    }),
    ("value defined twice", |t| t.node("/hidden").output[0] = "qkv".into()),
    ("initialiser defined twice", |t| {
        let copy = t.tensor("cos").clone();
        t.graph().initializer.push(copy);
    }),
    ("initialiser without a name", |t| t.tensor("cos").name.clear()),
    ("node defines an initialiser", |t| t.node("/hidden").output[0] = "cos".into()),
    ("undefined input", |t| t.node("/hidden").input[1] = "nowhere".into()),
    ("cycle", |t| t.node("/normed").input[0] = "hidden".into()),
    ("self loop", |t| t.node("/hidden").input[1] = "hidden".into()),
    ("missing output", |t| t.node("/logits").output[0] = "scores".into()),
    ("no outputs", |t| t.graph().output.clear()),
    ("output listed twice", |t| {
        let copy = t.graph().output[0].clone();
        t.graph().output.push(copy);
    }),
    ("input listed twice", |t| {
        let copy = t.graph().input[0].clone();
        t.graph().input.push(copy);
    }),
    ("input without a type", |t| t.graph().input[0].kind = None),
    ("input is a sequence", |t| {
        t.graph().input[0].kind =
            Some(TypeProto { sequence_type: Some(Ignored {}), ..TypeProto::default() });
    }),
    ("sparse initialiser", |t| {
        let values = Some(floats("sparse", &[2]));
        t.graph().sparse_initializer.push(SparseTensorProto { values });
    }),
    // Nodes.
    ("unknown operator", |t| t.node("/hidden").op_type = "Mystery".into()),
    ("two unknown operators", |t| {
        t.node("/hidden").op_type = "Mystery".into();
        t.node("/qkv").op_type = "Riddle".into();
    }),
    ("unknown operator behind another", |t| {
        t.node("/normed").op_type = "Mystery".into();
        t.node("/logits").op_type = "Riddle".into();
    }),
    ("unknown domain", |t| {
        let domain = "org.example".into();
        t.model.opset_import.push(OperatorSetIdProto { domain, version: 1 });
        t.node("/hidden").domain = "org.example".into();
    }),
    ("node without an operator", |t| t.node("/hidden").op_type.clear()),
    ("overload", |t| t.node("/hidden").overload = "v2".into()),
    ("unknown attribute", |t| t.node("/logits").attribute.push(int("fast", 1))),
    ("two unknown attributes", |t| {
        t.node("/logits").attribute.push(int("fast", 1));
        t.node("/logits").attribute.push(float("exact", 0.5));
    }),
    ("attribute twice", |t| t.node("/normed").attribute.push(int("axis", -1))),
    ("attribute of the wrong type", |t| t.node("/normed").attribute[0] = int("epsilon", 1)),
    ("attribute without a type", |t| t.node("/normed").attribute[0].kind = 0),
    ("attribute of no type", |t| t.node("/normed").attribute[0].kind = 77),
    ("attribute without a name", |t| t.node("/normed").attribute[0].name.clear()),
    ("attribute refers to a function", |t| {
        t.node("/normed").attribute[0].ref_attr_name = "epsilon".into();
    }),
    ("attribute not UTF-8", |t| {
        let mut attribute = text("note", "");
        attribute.s = Some(Bytes::from_static(&[0xff, 0xfe]));
        t.node("/normed").attribute.push(attribute);
    }),
    ("graph attribute without a graph", |t| {
        let mut attribute = graph("body", GraphProto::default());
        attribute.g = None;
        t.node("/normed").attribute.push(attribute);
    }),
    ("axis out of range", |t| t.node("/normed").attribute[1] = int("axis", 7)),
    ("missing required input", |t| t.node("/hidden").input.truncate(1)),
    ("missing attribute", |t| t.node("/attended").attribute.retain(|a| a.name != "num_heads")),
    ("no heads", |t| t.node("/attended").attribute[0] = int("num_heads", 0)),
    ("heads do not divide the projection", |t| {
        t.node("/attended").attribute[0] = int("num_heads", 5);
    }),
    ("cast to nothing", |t| t.node("/last").attribute[0] = int("to", 0)),
    ("cast to float8", |t| t.node("/last").attribute[0] = int("to", 17)),
    ("cast to a far number", |t| t.node("/last").attribute[0] = int("to", i64::MAX)),
    ("lengths are not the mask's", |t| t.node("/last_long").op_type = "Add".into()),
    ("lengths from data", |t| t.node("/attended").input[5] = "ids32".into()),
    // Shapes.
    ("matrices do not fit", |t| t.node("/logits").input[1] = "cos".into()),
    ("rows do not fit", |t| t.node("/logits").input[0] = "qkv".into()),
    ("addition does not broadcast", |t| t.node("/hidden").input[1] = "qkv".into()),
    ("addition of two types", |t| t.node("/hidden").input[1] = "input_ids".into()),
    ("norm of the wrong width", |t| t.node("/normed").input[1] = "cos".into()),
    ("float ids", |t| {
        let kind = t.graph().input[0].kind.as_mut().unwrap();
        kind.tensor_type.as_mut().unwrap().elem_type = FLOAT;
    }),
    ("ids of one dimension", |t| t.graph().input[0] = value("input_ids", INT64, &["sequence"])),
    ("ids of fixed length", |t| t.graph().input[0] = value("input_ids", INT64, &["batch", "7"])),
    ("ids of a fixed batch", |t| t.graph().input[0] = value("input_ids", INT64, &["3", "s"])),
    ("negative dimension of an input", |t| {
        t.graph().input[0] = value("input_ids", INT64, &["batch", "-5"]);
    }),
    ("input of an unknown kind", |t| t.graph().input.push(value("pixels", FLOAT, &["1", "3"]))),
    ("no token ids", |t| {
        t.graph().input[0].name = "pixels".into();
        t.node("/embedded").input[1] = "pixels".into();
        t.node("/embedded").op_type = "Mystery".into();
    }),
    ("no logits", |t| {
        t.node("/logits").output[0] = "scores".into();
        t.graph().output[0].name = "scores".into();
    }),
    ("cache does not come out", |t| t.graph().output.truncate(2)),
    ("cache of three dimensions", |t| {
        t.graph().input[2] = value("past_key_values.0.key", FLOAT, &["batch", "past", "16"]);
    }),
    ("cache of integers", |t| {
        t.graph().input[2] = value("past_key_values.0.key", INT64, &["b", "1", "past", "16"]);
    }),
    ("cache of other heads", |t| {
        t.graph().input[2] = value("past_key_values.0.key", FLOAT, &["b", "4", "past", "16"]);
    }),
    ("cache that is a constant of two dimensions", |t| {
        t.node("/attended").input[3] = "cos".into();
    }),
    ("cache of fixed length", fix_length),
    ("cache of fixed length that a node reads first", |t| {
        fix_length(t);
        t.graph().node.insert(0, node("Shape", "", &["past_key_values.0.key"], &["cached"]));
    }),
    ("length of what is made of a cache of fixed length", |t| {
        fix_length(t);
        let cache = "past_key_values.0.key";
        let mut turned = node("Transpose", "", &[cache], &["turned"]);
        turned.attribute = vec![axes("perm", &[0, 2, 1, 3])];
        let length = node("Shape", "", &["turned"], &["cached"]);
        let count = node("Size", "", &["turned"], &["elements"]);
        t.graph().node.splice(0..0, [turned, length, count]);
    }),
    ("part of a cache of fixed length", |t| {
        fix_length(t);
        let mut there = node("Transpose", "", &["past_key_values.0.key"], &["turned"]);
        there.attribute = vec![axes("perm", &[0, 2, 1, 3])];
        let mut back = node("Transpose", "", &["turned"], &["turned_back"]);
        back.attribute = vec![axes("perm", &[0, 2, 1, 3])];
        t.graph().node.splice(0..0, [there, back]);
        t.node("/attended").input[3] = "turned_back".into();
    }),
    ("cache of fixed length that is joined", |t| {
        fix_length(t);
        let mut heads = node("Reshape", "", &["qkv", "head_shape"], &["heads"]);
        heads.attribute = vec![int("allowzero", 0)];
        let mut rows = node("Transpose", "", &["heads"], &["rows"]);
        rows.attribute = vec![axes("perm", &[0, 2, 1, 3])];
        let mut one = node("Split", "", &["rows"], &["one_head", "a", "b", "c"]);
        one.attribute = vec![int("axis", 1), int("num_outputs", 4)];
        let mut joined = node("Concat", "", &["past_key_values.0.key", "one_head"], &["joined"]);
        joined.attribute = vec![int("axis", 2)];
        t.graph().initializer.push(ints("head_shape", &[4], &[0, 0, 4, 16]));
        t.graph().node.extend([heads, rows, one, joined]);
    }),
    ("rows without a number", |t| {
        t.model.opset_import[0].version = 24;
        let mut attention =
            node("Attention", "", &["qkv", "qkv", "qkv", "", "", "", "far"], &["strange"]);
        attention.attribute =
            vec![int("q_num_heads", 4), int("kv_num_heads", 4), int("is_causal", 1)];
        t.graph().initializer.push(ints("least", &[1], &[i64::MIN]));
        t.graph().node.push(node("Mul", "", &["lengths", "least"], &["far"]));
        t.graph().node.push(attention);
    }),
    ("input of too many dimensions", |t| {
        t.graph().input[0] = value("input_ids", INT64, &["batch"; 33]);
    }),
    ("float positions", |t| {
        t.graph().input.push(value("position_embeddings", FLOAT, &["batch", "sequence"]));
    }),
    // Tensors.
    ("no element type", |t| t.tensor("cos").data_type = 0),
    ("unknown element type", |t| t.tensor("cos").data_type = 1234),
    ("float8 tensor", |t| t.tensor("cos").data_type = 17),
    ("string tensor", |t| t.tensor("cos").data_type = 8),
    ("negative dimension", |t| t.tensor("cos").dims[0] = -16),
    ("shape overflows", |t| t.tensor("cos").dims = vec![i64::MAX, i64::MAX]),
    ("shape overflows beside a zero", |t| {
        t.tensor("cos").dims = vec![0, i64::MAX, i64::MAX];
    }),
    ("too many dimensions", |t| t.tensor("cos").dims = vec![1; 33]),
    ("bytes overflow", |t| t.tensor("cos").dims = vec![i64::MAX / 2]),
    ("too few elements", |t| t.tensor("cos").float_data.truncate(5)),
    ("elements in the wrong field", |t| t.tensor("cos").data_type = 10),
    ("no data", |t| t.tensor("cos").float_data.clear()),
    ("data twice", |t| t.tensor("cos").raw_data = Some(Bytes::from_static(&[0; 512]))),
    ("raw data too short", |t| {
        t.tensor("cos").float_data.clear();
        t.tensor("cos").raw_data = Some(Bytes::from_static(&[0; 511]));
    }),
    ("byte out of range", |t| {
        let tensor = t.tensor("cos");
        tensor.float_data.clear();
        tensor.data_type = 2;
        tensor.int32_data = vec![300; 128];
    }),
    ("bool that is neither", |t| {
        let tensor = t.tensor("cos");
        tensor.float_data.clear();
        tensor.data_type = 9;
        tensor.raw_data = Some(Bytes::from_static(&[2; 128]));
    }),
    ("tensor in segments", |t| t.tensor("cos").segment = Some(Ignored {})),
    ("unknown data location", |t| t.tensor("cos").data_location = 5),
    ("huge constant of shape", |t| {
        t.tensor("one").int64_data[0] = i64::MAX;
        let mut fill = node("ConstantOfShape", "", &["one"], &["huge"]);
        fill.attribute = vec![];
        t.graph().node.insert(0, fill);
        t.node("/hidden").input[1] = "huge".into();
    }),
    // External data.
    ("external file missing", |t| t.files.clear()),
    ("external file empty", |t| t.files[0].1.clear()),
    ("external file short", |t| t.files[0].1.truncate(100)),
    ("external without a location", |t| t.tensor("qkv.weight").external_data.remove(0).key.clear()),
    ("external location twice", |t| {
        let copy = t.tensor("qkv.weight").external_data[0].clone();
        t.tensor("qkv.weight").external_data.push(copy);
    }),
    ("external location empty", |t| t.external("qkv.weight", "location").clear()),
    ("external location above", |t| *t.external("qkv.weight", "location") = "../weights".into()),
    ("external location above, hidden", |t| {
        *t.external("qkv.weight", "location") = "a/../../weights".into();
    }),
    ("external location absolute", |t| {
        *t.external("qkv.weight", "location") = "/etc/passwd".into();
    }),
    ("external location with a zero byte", |t| {
        *t.external("qkv.weight", "location") = "model.onnx.data\0".into();
    }),
    ("external location is the directory", |t| *t.external("qkv.weight", "location") = ".".into()),
    ("external offset no number", |t| *t.external("qkv.weight", "offset") = "0x10".into()),
    ("external offset negative", |t| *t.external("qkv.weight", "offset") = "-1".into()),
    ("external offset overflows", |t| {
        *t.external("qkv.weight", "offset") = u64::MAX.to_string();
    }),
    ("external offset beyond 64 bits", |t| {
        *t.external("qkv.weight", "offset") = "18446744073709551616".into();
    }),
    ("external offset out of range", |t| *t.external("qkv.weight", "offset") = "99999".into()),
    ("external length wrong", |t| *t.external("qkv.weight", "length") = "8191".into()),
    ("external ranges overlap", |t| *t.external("o.weight", "offset") = "8188".into()),
    ("external ranges equal", |t| {
        *t.external("o.weight", "offset") = "0".into();
    }),
    ("external key unknown", |t| {
        let (key, value) = ("compression".into(), "zip".into());
        t.tensor("qkv.weight").external_data.push(StringStringEntryProto { key, value });
    }),
    ("external and inline", |t| t.tensor("qkv.weight").float_data.push(1.0)),
    ("external data not marked", |t| t.tensor("qkv.weight").data_location = 0),
    // Files beside.
    ("tokenizer is no JSON", |t| t.files.push(("tokenizer.json".into(), b"{".to_vec()))),
    ("config is a list", |t| t.files.push(("config.json".into(), b"[]".to_vec()))),
    ("eos is a text", |t| {
        t.files.push(("generation_config.json".into(), br#"{"eos_token_id": "</s>"}"#.to_vec()));
    }),
    ("temperature is a text", |t| {
        let json = br#"{"search": {"temperature": "hot"}, "model": {}}"#.to_vec();
        t.files.push(("genai_config.json".into(), json));
    }),
    ("context is negative", |t| {
        let json = br#"{"text_config": {"max_position_embeddings": -4}}"#.to_vec();
        t.files.push(("config.json".into(), json));
    }),
    ("template not UTF-8", |t| {
        t.files.push(("chat_template.jinja".into(), vec![0xff]));
    }),
];

#[test]
fn the_whole_model_imports() {
    let imported = attempt(|directory| tiny().write(directory)).unwrap();
    assert_eq!(imported.facts.columns, 8);
    assert_eq!(imported.facts.table_rows, Some(16));
}

#[test]
fn errors_name_the_place() {
    let mut rendered = String::new();
    for (name, change) in BREAKS {
        let error = attempt(|directory| {
            let mut tiny = tiny();
            if *name == "lengths from data" {
                let mut cast = node("Cast", "", &["input_ids"], &["ids32"]);
                cast.attribute = vec![int("to", 6)];
                tiny.graph().node.insert(0, cast);
            }
            change(&mut tiny);
            tiny.write(directory);
        });
        let error = error.map(|_| ()).expect_err(name);
        writeln!(rendered, "== {name}\n{error}\n").unwrap();
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/broken.expected");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&golden, &rendered).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (rendered, expected) in rendered.split("\n== ").zip(expected.split("\n== ")) {
        assert_eq!(rendered, expected, "BLESS=1 accepts");
    }
    assert_eq!(rendered, expected);
}

#[test]
fn every_truncation_is_an_error() {
    let model = tiny();
    let bytes = model.model.encode_to_vec();
    let directory = tempfile::tempdir().unwrap();
    model.write(directory.path());
    for length in (0..bytes.len()).step_by(3) {
        std::fs::write(directory.path().join("model.onnx"), &bytes[..length]).unwrap();
        let result = import(directory.path(), &ImportOptions::default());
        assert!(result.is_err(), "{length} bytes of {}", bytes.len());
    }
}

/// A fixed sequence of numbers (SplitMix64).
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Flips may hit a weight, which is no error; whatever they hit, nothing panics.
#[test]
fn flipped_bits_do_not_panic() {
    let model = tiny();
    let bytes = model.model.encode_to_vec();
    let directory = tempfile::tempdir().unwrap();
    model.write(directory.path());
    let mut next = numbers(1);
    for _ in 0..1500 {
        let mut broken = bytes.clone();
        for _ in 0..1 + next() % 3 {
            let bit = next() as usize % (8 * broken.len());
            broken[bit / 8] ^= 1 << (bit % 8);
        }
        std::fs::write(directory.path().join("model.onnx"), &broken).unwrap();
        if let Err(ImportError { problems, .. }) = import(directory.path(), &Default::default()) {
            assert!(problems.iter().all(|problem| !problem.message.is_empty()));
        }
    }
}

#[test]
fn links_are_refused_with_the_remedy() {
    let weights = tempfile::tempdir().unwrap();
    let elsewhere = weights.path().join("blob");
    let linked = |hard: bool| {
        attempt(|directory| {
            let mut tiny = tiny();
            let (name, data) = tiny.files.pop().unwrap();
            std::fs::write(&elsewhere, data).unwrap();
            tiny.write(directory);
            let link = directory.join(name);
            if hard {
                std::fs::hard_link(&elsewhere, link).unwrap();
            } else {
                symlink(&elsewhere, link).unwrap();
            }
        })
    };
    for hard in [false, true] {
        let error = linked(hard).unwrap_err();
        assert!(error.contains("--links-under DIR"), "{error}");
    }
}

#[test]
fn links_under_a_trusted_directory_are_followed() {
    let cache = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshot"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    tiny().write(&blobs);
    std::fs::rename(blobs.join("model.onnx"), blobs.join("0a")).unwrap();
    std::fs::rename(blobs.join("model.onnx.data"), blobs.join("0b")).unwrap();
    symlink("../blobs/0a", snapshot.join("model.onnx")).unwrap();
    symlink("../blobs/0b", snapshot.join("model.onnx.data")).unwrap();
    let trusting = |directory: &Path| ImportOptions { links_under: Some(directory.into()) };
    assert!(import(&snapshot, &ImportOptions::default()).is_err());
    assert!(import(&snapshot, &trusting(&snapshot)).is_err());
    import(&snapshot, &trusting(&blobs)).unwrap();
    // The path that the user types may be a link without any option, its company may not.
    let error = import(&snapshot.join("model.onnx"), &ImportOptions::default()).unwrap_err();
    assert!(error.to_string().contains("model.onnx.data"), "{error}");
    import(&snapshot.join("model.onnx"), &trusting(&blobs)).unwrap();
}

#[test]
fn links_that_the_user_types_are_followed() {
    let real = tempfile::tempdir().unwrap();
    tiny().write(real.path());
    let other = tempfile::tempdir().unwrap();
    let (directory, file) = (other.path().join("directory"), other.path().join("file"));
    symlink(real.path(), &directory).unwrap();
    symlink(real.path().join("model.onnx"), &file).unwrap();
    import(&directory, &ImportOptions::default()).unwrap();
    import(&file, &ImportOptions::default()).unwrap();
}
