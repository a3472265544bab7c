//! The command that writes logits.

use super::*;
use crate::command::Logits;

#[test]
fn the_logits_command_writes_what_the_reference_computes() {
    let layouts = layouts(true);
    let model = model(&layouts);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("logits.safetensors");
    for length in [1, 4, 9, 10, 23] {
        let prompt = prompt_of(length);
        let forced = [3, 1, 4, 1, 5];
        let join = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let arguments = ["logits", "--ids", &join(&prompt), "--force", &join(&forced), "-o"];
        let arguments = arguments.into_iter().map(Into::into).chain([output.clone().into()]);
        logits_command(arguments).run(&model).unwrap();
        let tokens = [&prompt[..], &forced[..4]].concat();
        let rotary_set = u32::from(tokens.len() > ROTARY_SWITCH as usize);
        let expected = reference(&layouts, &tokens, std::slice::from_ref(&(0..length)), rotary_set);
        let bytes = std::fs::read(&output).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let rows = |name: &str| -> Vec<Vec<f32>> {
            let tensor = tensors.tensor(name).unwrap();
            let values: Vec<f32> = tensor
                .data()
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            assert_eq!(tensor.shape()[1], VOCABULARY as usize);
            values.chunks(VOCABULARY as usize).map(<[f32]>::to_vec).collect()
        };
        assert_eq!(rows("prefill_logits"), expected[..length], "L = {length}");
        assert_eq!(rows("step_logits"), expected[length - 1..], "L = {length}");
    }
}

fn logits_command(arguments: impl Iterator<Item = std::ffi::OsString>) -> Logits {
    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        logits: Logits,
    }
    <Only as clap::Parser>::parse_from(arguments).logits
}
