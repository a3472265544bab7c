//! From options to a compiled model: import, passes, code generation, in that order.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use weir_abi::IsaLevel;
use weir_codegen::image::ModelImage;
use weir_codegen::jit::{ModelInMemory, PackedWeights};
use weir_codegen::work::{KernelWork, ModelWork, SegmentWork, model_work};
use weir_frontend::{ImportOptions, ModelFacts, TextAssets};
use weir_ir::graph::{CacheDecl, OutputRole};
use weir_ir::{DType, Graph, RowFormats, Stage, verify::verify};
use weir_passes::kv::policy::{Budget, KvError, KvOptions};
use weir_passes::kv::sparsify_kv::Keep;
use weir_passes::registry::{PASSES, Pass};
use weir_passes::weights::{Calibration, CalibrationStage, TextSource, Watch, WeightChoice};
use weir_passes::{Flow, Observer, PassReport, Report};
use weir_runtime::command::say;
use weir_runtime::facts::{
    BuildFacts, Facts, KernelFacts, PassFacts, SamplingFacts, SegmentFacts, WorkFacts,
};
use weir_runtime::{CompiledModel, Model};

use crate::calibrate::{self, CalibrationText, written};
use crate::failure::Failure;
use crate::options::{
    CalibrationSource, ComputeOption, DEFAULT_CALIBRATE_TOKENS, ModelOptions, ReportOptions,
    formats_name,
};
use crate::progress::{Progress, Work};
use crate::weights::weight_facts;

/// Name of the graph as it was read, for `--dump` and `--stop-after`.
const IMPORTED: &str = "imported";

/// A model whose graph has gone through the passes.
pub struct Lowered {
    /// The graph, at stage `Fixed` unless `--stop-after` ended the pipeline.
    pub graph: Graph,
    /// What the passes did.
    pub report: Report,
    /// Tokenizer and template.
    pub text: TextAssets,
    /// What the files say.
    pub facts: ModelFacts,
    /// Positions of a sequence.
    pub context: u32,
    /// The policy as it was read.
    pub kv: KvOptions,
    /// Windows of the calibration text that weights were not calibrated with.
    pub held_out: Vec<Vec<u32>>,
    /// Phases and how long they took.
    pub times: Vec<(String, Duration)>,
}

impl Lowered {
    /// Whether all passes have run.
    pub fn is_complete(&self) -> bool {
        self.graph.stage == Stage::Fixed
    }

    /// Whether the model gives embeddings instead of logits.
    pub fn gives_embeddings(&self) -> bool {
        self.graph.main.results.iter().any(|result| result.role == OutputRole::Hidden)
    }
}

/// Imports a model and runs the passes.
pub fn lower(
    options: &ModelOptions,
    report: &ReportOptions,
    progress: &Progress,
) -> Result<Lowered, Failure> {
    let stop = report.stop_after.as_deref();
    for name in report.dump.iter().map(String::as_str).chain(stop) {
        check_pass(name)?;
    }
    let kv = kv(options)?;
    let weights = weights(options)?;
    check_places(options)?;
    let start = Instant::now();
    let work = progress.start("importing");
    let import = ImportOptions { links_under: options.links_under.clone() };
    let imported = weir_frontend::import(&options.model, &import)?;
    drop(work);
    let mut times = vec![("import".to_owned(), start.elapsed())];
    let context = context(options, &imported.facts)?;
    if report.dump.iter().any(|name| name == IMPORTED) {
        dump(&format!("; imported\n{}", imported.graph));
    }
    let mut lowered = Lowered {
        graph: imported.graph,
        report: Report::default(),
        text: imported.text,
        facts: imported.facts,
        context,
        kv: kv.clone(),
        held_out: Vec::new(),
        times: Vec::new(),
    };
    if stop != Some(IMPORTED) {
        let given = given_text(options, &lowered, progress)?;
        let kv_dtype = chosen_kv_dtype(options);
        let key_text = match kv_dtype.is_some_and(RowFormats::turns_keys) {
            true => {
                let Lowered { text, facts, context, .. } = &lowered;
                calibrate::key_text(given.as_ref(), text, facts, *context)?
            }
            false => Vec::new(),
        };
        let work = Arc::new(progress.start("rewriting"));
        let held_out = Arc::new(OnceLock::new());
        let text = text_source(options, given, context, &work, &held_out);
        let calibration = text.map(|text| {
            let work = Arc::clone(&work);
            let watch = Watch::new(move |stage, done, all| {
                let what = match stage {
                    CalibrationStage::Choosing => "weights",
                    CalibrationStage::Refining => "steps at most",
                };
                work.say(format!("calibrating, {done} of {all} {what}"));
            });
            Calibration { text, is_asked_for: options.calibrate.is_some(), watch }
        });
        let pass_options = weir_passes::Options {
            context,
            calibration,
            kv,
            kv_dtype,
            activations: activations(options),
            key_text,
            max_rows: options.step_rows,
            weights,
            model_limit: lowered.facts.context_limit,
        };
        let mut watcher = Watcher { report, last: lowered.graph.to_string() };
        let (graph, passes) =
            weir_passes::run_observed(lowered.graph, &pass_options, &mut watcher)?;
        drop(work);
        times.extend(passes.passes.iter().map(|pass| (format!("pass {}", pass.name), pass.time)));
        (lowered.graph, lowered.report) = (graph, passes);
        lowered.held_out = held_out.get().cloned().unwrap_or_default();
    }
    for warning in &lowered.report.warnings {
        say(format_args!("warning: {warning}"));
    }
    if report.explain {
        // Not among what a program may read from standard output.
        for pass in pass_facts(&lowered.report) {
            say(format_args!("{pass}"));
        }
    }
    lowered.times = times;
    Ok(lowered)
}

/// The file of `--calibrate`, if it names one.
fn given_text(
    options: &ModelOptions,
    lowered: &Lowered,
    progress: &Progress,
) -> Result<Option<CalibrationText>, Failure> {
    let Lowered { text, facts, context, .. } = lowered;
    let is_counted = options.calibrate_tokens != DEFAULT_CALIBRATE_TOKENS;
    if options.calibrate == Some(CalibrationSource::Nothing) && is_counted {
        return Err(Failure::usage("--calibrate-tokens: --calibrate none reads no text"));
    }
    let Some(CalibrationSource::Text(path)) = &options.calibrate else { return Ok(None) };
    let _work = progress.start("reading the text");
    CalibrationText::read(path, options.calibrate_tokens, text, facts, *context).map(Some)
}

/// What codes are chosen by, if not rounded to nearest. The text's end goes to `held_out`.
fn text_source(
    options: &ModelOptions,
    given: Option<CalibrationText>,
    context: u32,
    work: &Arc<Work>,
    held_out: &Arc<OnceLock<Vec<Vec<u32>>>>,
) -> Option<TextSource> {
    let asked = match &options.calibrate {
        Some(CalibrationSource::Nothing) => return None,
        Some(_) => Some(options.calibrate_tokens),
        None => None,
    };
    let (options, work, held_out) = (options.clone(), Arc::clone(work), Arc::clone(held_out));
    let find = move |weights| -> Result<CalibrationText, Failure> {
        if let Some(given) = &given {
            return Ok(given.clone());
        }
        let tokens = asked.map_or_else(|| written::tokens_unasked(weights), Ok)?;
        let quiet = ReportOptions { quiet: true, ..ReportOptions::default() };
        let float = written::writer(&options, context);
        let model = Model::new(load(&float, &quiet, &Progress::new(true))?)?;
        let watch = |done, all| work.say(format!("writing a text, {done} of {all} tokens"));
        written::write(&model, tokens, watch)
    };
    Some(TextSource::new(move |weights| {
        let text = find(weights)?;
        // A pass asks once.
        let _ = held_out.set(text.held_out);
        Ok(text.windows)
    }))
}

/// What each pass did.
fn pass_facts(report: &Report) -> Vec<PassFacts> {
    let facts = |pass: &PassReport| PassFacts {
        name: pass.name.to_owned(),
        changes: pass.change.count,
        nodes_before: pass.nodes[0],
        nodes_after: pass.nodes[1],
        notes: pass.change.notes.clone(),
    };
    report.passes.iter().map(facts).collect()
}

/// How code is generated, beyond what the model is made into.
#[derive(Clone, Copy, Debug, Default)]
pub struct Emission<'a> {
    /// Levels besides the portable one; all if not given.
    pub levels: Option<&'a [IsaLevel]>,
    /// Keeps texts of the code.
    pub listing: bool,
    /// Lets the time of every kernel be measured.
    pub profile: bool,
}

/// What the compiler counted, as the artefact holds it.
fn work_facts(work: ModelWork) -> WorkFacts {
    let kernel = |kernel: KernelWork| KernelFacts {
        name: kernel.name,
        call_bytes: kernel.call_bytes,
        row_bytes: kernel.row_bytes,
        cached_row_bytes: kernel.cached_row_bytes,
        integer_operations: kernel.integer_operations,
        tile_operations: kernel.tile_operations,
        float_operations: kernel.float_operations,
        bf16_operations: kernel.bf16_operations,
        attended_integer_operations: kernel.attended_integer_operations,
        attended_float_operations: kernel.attended_float_operations,
        attended_bf16_operations: kernel.attended_bf16_operations,
    };
    let segment = |segment: SegmentWork| SegmentFacts {
        name: segment.name,
        kernels: segment.kernels.into_iter().map(kernel).collect(),
    };
    WorkFacts {
        embed: segment(work.embed),
        kinds: work.kinds.into_iter().map(segment).collect(),
        head: segment(work.head),
    }
}

/// Generates code and hands the model to `write`.
pub fn with_image<T>(
    lowered: &mut Lowered,
    options: &ModelOptions,
    progress: &Progress,
    how: Emission<'_>,
    write: impl FnOnce(&ModelImage<'_>, &weir_codegen::Report) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let start = Instant::now();
    let work = progress.start("compiling");
    let tokenizer = match &lowered.text.tokenizer {
        Some(json) => weir_tokenizer::pack(json)
            .map_err(|error| Failure::other(format!("tokenizer.json: {error}")))?,
        None => Vec::new(),
    };
    let verified = verify(&lowered.graph, Stage::Fixed).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        Failure::other(format!("internal error: {}", lines.join("\n")))
    })?;
    let mut codegen = weir_codegen::Options {
        compute: options.compute.map(ComputeOption::arithmetic),
        levels: how.levels.unwrap_or(&IsaLevel::ALL),
        max_rows: options.step_rows,
        // A head call serves all slots; a few more rows cost little and speed up `logits`.
        max_head_rows: options.slots.max(16).min(options.step_rows),
        slots: options.slots,
        context: lowered.context,
        tokenizer: &tokenizer,
        chat_template: lowered.text.chat_template.as_deref().unwrap_or_default().as_bytes(),
        facts: &[],
        listing: how.listing,
        profile: how.profile,
    };
    let mut facts = facts(lowered, options);
    facts.work = Some(work_facts(model_work(verified, &codegen)?));
    let facts = serde_json::to_vec(&facts).map_err(Failure::other)?;
    codegen.facts = &facts;
    let generated = weir_codegen::generate(verified, &codegen)?;
    drop(work);
    lowered.times.push(("generate code".to_owned(), start.elapsed()));
    let start = Instant::now();
    let outcome = write(&generated.image, &generated.report)?;
    lowered.times.push(("pack and write".to_owned(), start.elapsed()));
    Ok(outcome)
}

/// Prints a graph. A reader that has gone needs no more of it.
fn dump(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

/// Compiles a model into memory.
pub fn load(
    options: &ModelOptions,
    report: &ReportOptions,
    progress: &Progress,
) -> Result<CompiledModel, Failure> {
    let lowered = lower(options, report, progress)?;
    load_lowered(lowered, options, report, progress, Emission::default())
}

/// Compiles a model whose passes have run into memory.
pub fn load_lowered(
    mut lowered: Lowered,
    options: &ModelOptions,
    report: &ReportOptions,
    progress: &Progress,
    how: Emission<'_>,
) -> Result<CompiledModel, Failure> {
    if !lowered.is_complete() {
        return Err(not_complete());
    }
    let model = load_whole(&mut lowered, options, progress, how)?;
    print_times(&lowered, report);
    Ok(model)
}

fn not_complete() -> Failure {
    Failure::usage("--stop-after ends before there is a model to run; use it with compile")
}

/// Compiles a graph at stage `Fixed` into memory.
pub fn load_whole(
    lowered: &mut Lowered,
    options: &ModelOptions,
    progress: &Progress,
    how: Emission,
) -> Result<CompiledModel, Failure> {
    with_image(lowered, options, progress, how, |image, _| {
        let work = progress.start_bytes("packing", image.weights.bytes);
        let mut progress = |done, _| work.at(done);
        let memory = ModelInMemory::load(image, &mut progress)?;
        Ok(CompiledModel::from_parts(memory.code, memory.tables, memory.weights)?)
    })
}

/// Compiles the same weights once for each way to keep rows; they are packed once, and once more for
/// caches whose keys are centred. Every set of options says one way and differs from the first in that
/// alone.
pub fn load_each(
    ways: &[ModelOptions],
    report: &ReportOptions,
    progress: &Progress,
    how: Emission<'_>,
) -> Result<Vec<CompiledModel>, Failure> {
    for options in ways {
        kv(options)?;
    }
    // Graphs differ where keys are centred; all else of a cache is said to the graph afterwards.
    let mut graphs: [Option<(Lowered, Option<Arc<PackedWeights>>)>; 2] = [None, None];
    let mut models = Vec::with_capacity(ways.len());
    for options in ways {
        let format = chosen_kv_dtype(options);
        let graph = &mut graphs[usize::from(format.is_some_and(RowFormats::turns_keys))];
        let (lowered, weights) = match graph {
            Some(graph) => graph,
            None => graph.insert((lower(options, report, progress)?, None)),
        };
        if !lowered.is_complete() {
            return Err(not_complete());
        }
        lowered.kv = kv(options)?;
        let keep = Keep {
            kv: &lowered.kv,
            format,
            activations: activations(options),
            context: lowered.context,
        };
        keep.rows(&mut lowered.graph, options.step_rows)
            .map_err(|error| Failure::usage(format!("--kv {}: {error}", lowered.kv)))?;
        let model = with_image(lowered, options, progress, how, |image, _| {
            let work = progress.start_bytes("packing", image.weights.bytes);
            let mut progress = |done, _| work.at(done);
            let packed = match weights.take().filter(|packed| packed.holds(&image.weights)) {
                Some(packed) => packed,
                None => Arc::new(PackedWeights::pack(&image.weights, &mut progress)?),
            };
            let memory = ModelInMemory::with_weights(image, &packed)?;
            *weights = Some(packed);
            Ok(CompiledModel::from_parts(memory.code, memory.tables, memory.weights)?)
        })?;
        models.push(model);
    }
    for (lowered, _) in graphs.iter().flatten() {
        print_times(lowered, report);
    }
    Ok(models)
}

/// Prints the phases if they were asked for.
pub fn print_times(lowered: &Lowered, report: &ReportOptions) {
    if report.time {
        for (phase, time) in &lowered.times {
            say(format_args!("{:9.2} ms  {phase}", time.as_secs_f64() * 1e3));
        }
    }
}

/// The user's choice, else what the model was made for, as far as the file's tables go.
fn context(options: &ModelOptions, facts: &ModelFacts) -> Result<u32, Failure> {
    match (options.context, facts.table_rows) {
        (Some(context), Some(rows)) if context > rows => Err(Failure::usage(format!(
            "--context {context}: the model's rotary table ends after {rows} positions"
        ))),
        (Some(context), _) => Ok(context),
        (None, rows) => [facts.context_limit, rows].into_iter().flatten().min().ok_or_else(|| {
            Failure::usage(
                "the model's files do not say how long a sequence may be; give --context",
            )
        }),
    }
}

/// What a model is called: the first name on the way up that is not what every export is called
/// (`tales/onnx/model.onnx` is `tales`).
fn model_name(path: &Path) -> String {
    const EVERYBODYS: [&str; 3] = ["model", "onnx", "decoder_model_merged"];
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let names = whole.ancestors().filter_map(|part| match part.extension() {
        Some(extension) if extension == "onnx" => part.file_stem(),
        _ => part.file_name(),
    });
    let mut own =
        names.map(|name| name.to_string_lossy()).filter(|name| !EVERYBODYS.contains(&&**name));
    own.next().map_or_else(|| "model".to_owned(), |name| name.into_owned())
}

fn facts(lowered: &Lowered, options: &ModelOptions) -> Facts {
    let sampling = &lowered.facts.sampling;
    let text = &lowered.text;
    let special = [
        ("bos_token", &text.bos_token),
        ("eos_token", &text.eos_token),
        ("pad_token", &text.pad_token),
        ("unk_token", &text.unk_token),
    ];
    let source = options.model.file_name().unwrap_or(options.model.as_os_str());
    let source = source.to_string_lossy().into_owned();
    Facts {
        name: model_name(&options.model),
        bos_token_id: lowered.facts.bos,
        eos_token_ids: lowered.facts.eos.clone(),
        pad_token_id: lowered.facts.pad,
        add_bos: text.add_bos,
        sampling: SamplingFacts {
            do_sample: sampling.do_sample,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
        },
        special: special
            .into_iter()
            .filter_map(|(name, token)| Some((name.to_owned(), token.clone()?)))
            .collect(),
        build: BuildFacts {
            weir: env!("CARGO_PKG_VERSION").to_owned(),
            compute: match options.compute {
                None => "by weight format".to_owned(),
                Some(chosen) => chosen.arithmetic().name().to_owned(),
            },
            kv: lowered.kv.to_string(),
            kv_dtype: kv_dtype(&lowered.graph),
            source,
        },
        weights: weight_facts(&lowered.graph),
        passes: pass_facts(&lowered.report),
        work: None,
    }
}

/// Number formats of the caches as on the command line: layers share them, but some have no block.
fn kv_dtype(graph: &Graph) -> String {
    let formats = |cache: &CacheDecl| RowFormats { ring: cache.format, block: cache.block };
    let mut caches = graph.caches.values();
    let with_block = caches.clone().find(|cache| cache.block.is_some());
    with_block
        .or_else(|| caches.next())
        .map(|cache| formats_name(formats(cache)))
        .unwrap_or_default()
}

/// The number format of the caches, if the user's options say it.
fn chosen_kv_dtype(options: &ModelOptions) -> Option<RowFormats> {
    options.kv_dtype.first().map(|chosen| chosen.formats())
}

/// What all products round their activations to, if the user's options say it: integers are only for
/// weights that suit them, and so are up to each weight.
fn activations(options: &ModelOptions) -> Option<DType> {
    match options.compute? {
        ComputeOption::F32 => Some(DType::F32),
        ComputeOption::Bf16 => Some(DType::BF16),
        ComputeOption::Int8 | ComputeOption::Int8Row => None,
    }
}

/// The cache policy out of both of its options, where there is one.
fn kv(options: &ModelOptions) -> Result<KvOptions, Failure> {
    let alone = |option: &str, times: usize| match times {
        0 | 1 => Ok(()),
        times => Err(Failure::usage(format!(
            "{option} is given {times} times; several are for weir eval and weir bench, which \
             compare them"
        ))),
    };
    alone("--kv", options.kv.len())?;
    alone("--kv-dtype", options.kv_dtype.len())?;
    let policy = options.kv.first().map_or("", String::as_str);
    let kv = KvOptions::parse(policy)
        .map_err(|error| Failure::usage(format!("--kv {policy}: {error}")))?;
    let place = |option: String| {
        move |error| match error {
            KvError::Twice(what) => Failure::usage(format!(
                "{option}: --kv {policy} says {what} already; give one of the two"
            )),
            error => Failure::usage(format!("{option}: {error}")),
        }
    };
    let kv = match options.kv_rows {
        Some(rows) => kv.with_rows(rows).map_err(place(format!("--kv-rows {rows}")))?,
        None => kv,
    };
    let kv = if options.draft > 0 { kv.with_draft(options.draft) } else { kv };
    match &options.kv_budget {
        Some(text) => kv.with_budget(budget(text)?).map_err(place(format!("--kv-budget {text}"))),
        None => Ok(kv),
    }
}

/// A budget by its name, or out of the file of this name.
fn budget(text: &str) -> Result<Budget, Failure> {
    let path = Path::new(text);
    if !path.is_file() {
        return Budget::parse(text).map_err(|error| {
            Failure::usage(format!("--kv-budget {text}: {error}, or a file with them"))
        });
    }
    let content = std::fs::read_to_string(path)
        .map_err(|error| Failure::other(format!("{}: {error}", path.display())))?;
    Budget::parse_file(&content)
        .map_err(|error| Failure::usage(format!("--kv-budget {text}: {error}")))
}

/// Formats of the weights. Scales keep single precision where products are to be float32's.
fn weights(options: &ModelOptions) -> Result<WeightChoice, Failure> {
    let Some(text) = &options.weights else { return Ok(WeightChoice::default()) };
    let choice = WeightChoice::parse(text)
        .map_err(|error| Failure::usage(format!("--weights {text}: {error}")))?;
    Ok(match options.compute {
        Some(ComputeOption::F32) => choice.with_scales(DType::F32),
        _ => choice,
    })
}

/// Finds paths that cannot be meant before anything is read.
fn check_places(options: &ModelOptions) -> Result<(), Failure> {
    if let Some(folder) = options.links_under.as_deref().filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(Failure::usage(format!("--links-under {folder}: there is no such directory")));
    }
    if is_compiled(&options.model) {
        let model = options.model.display();
        return Err(Failure::usage(format!(
            "{model} is compiled already; start it, as in {model} generate --prompt \"…\""
        )));
    }
    Ok(())
}

/// Whether a path is a file that `weir compile` wrote, or at least one of its kind.
pub fn is_compiled(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"\x7fELF"
}

/// The same of a model that is measured. What was given and only compiling heeds is refused if it is.
pub fn measures_compiled<'g>(
    path: &Path,
    given: impl Iterator<Item = &'g str>,
) -> Result<bool, Failure> {
    let (is_compiled, given) = (is_compiled(path), given.collect::<Vec<_>>());
    if is_compiled && !given.is_empty() {
        return Err(Failure::usage(format!(
            "{} is compiled already; {} needs the model that it was compiled from",
            path.display(),
            given.join(", "),
        )));
    }
    Ok(is_compiled)
}

fn check_pass(name: &str) -> Result<(), Failure> {
    if name == IMPORTED || PASSES.iter().any(|pass| pass.name == name) {
        return Ok(());
    }
    let names: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
    Err(Failure::usage(format!(
        "no pass is called \"{name}\"; there are {IMPORTED}, {}",
        names.join(", ")
    )))
}

/// Prints graphs and stops where it was asked to.
struct Watcher<'a> {
    report: &'a ReportOptions,
    last: String,
}

impl Observer for Watcher<'_> {
    fn before(&mut self, _: &'static Pass) {}

    fn after(&mut self, graph: &Graph, pass: &PassReport) -> Flow {
        if !self.report.dump.is_empty() {
            let text = graph.to_string();
            if self.report.dump.iter().any(|name| name == pass.name) {
                if text == self.last {
                    dump(&format!("; after {}: unchanged", pass.name));
                } else {
                    dump(&format!("; after {}\n{text}", pass.name));
                }
            }
            self.last = text;
        }
        if self.report.stop_after.as_deref() == Some(pass.name) {
            Flow::Stop
        } else {
            Flow::Continue
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_a_name_of_its_own() {
        for (path, name) in [
            ("/m/tales/onnx", "tales"),
            ("/m/tales/onnx/model.onnx", "tales"),
            ("/m/llama-3.2/onnx/decoder_model_merged.onnx", "llama-3.2"),
            ("/m/qwen.onnx", "qwen"),
            ("/m/tales/onnx-genai-int4", "onnx-genai-int4"),
            ("/onnx", "model"),
        ] {
            assert_eq!(model_name(Path::new(path)), name, "{path}");
        }
    }
}
