//! `manifest.json`: rules that the schema cannot express, and the fields that the rest of this crate needs.

use std::collections::HashSet;

use crate::json::{quoted, Bounds, Json};
use crate::schema::{manifest_schema, problems, Problems};
use crate::signature;

pub const NAME: &str = "manifest.json";
pub const DRAFT: &str = "draft.safetensors";
pub const ADAPTERS: &str = "adapters/";

/// What an adapter has instead of the bundle's own fields.
const OF_ADAPTER: [&str; 6] = ["methods", "speculation", "quantization", "parity", "below_floor", "prefixes"];
const LONGEST_NAME: usize = 32; // of an adapter or a prefix

// More than any model needs; these limits bound error messages and memory.
const BOUNDS: Bounds = Bounds { values: 100_000, name: Some(255), strict: true };

/// Custom operators of this version's engine; the same list as in manifest.py.
const OPERATORS: [&str; 21] = [
    "tree_attention",
    "window_attention",
    "short_convolution",
    "embedding_q8",
    "embedding_q4",
    "linear",
    "biased_linear",
    "qkv",
    "biased_qkv",
    "query",
    "gated_mlp",
    "gated_branch",
    "add_normed",
    "gate_heads",
    "silu_gate",
    "gelu_gate",
    "delta_rows",
    "gated_delta_rule",
    "head",
    "capped_head",
    "stream_top_k",
];

#[derive(Debug)]
pub struct Method {
    pub name: String,
    pub rows: i64,
    pub keep: Option<i64>,
    pub stream_nodes: Option<i64>,
}

#[derive(Debug)]
pub struct FileFacts {
    pub name: String,
    pub sha256: String,
    pub bytes: u64,
}

/// All counts are at most 2**53, so conversions cannot overflow.
#[derive(Debug)]
pub struct Manifest {
    pub target: String,
    pub capacity: i64,
    pub cache_bytes: i64,           // of one sequence
    pub snr_db: Vec<(String, f64)>, // of each method, as the exporter measured it
    pub vocab_size: i64,
    pub num_streams: i64,
    pub top_k: i64,
    pub stream_vocab_size: i64,
    pub prefill_rows: i64,
    pub verify: Vec<Method>, // ascending by rows
    pub methods: Vec<Method>,
    pub deferred: bool,
    pub parent_rank: i64,
    pub bos_token_id: Option<i64>,
    pub eos_token_ids: Vec<i64>,
    pub chat_template: Option<String>,
    pub sampling: Sampling,
    pub prefixes: Vec<String>,  // names, in the order of the manifest
    pub files: Vec<FileFacts>,  // in the order of the manifest
    pub adapters: Vec<Adapter>, // in the order of the manifest
}

/// A task adapter, and the manifest of the bundle while it is chosen, without the files.
#[derive(Debug)]
pub struct Adapter {
    pub name: String,
    pub manifest: Manifest,
}

#[derive(Debug)]
pub struct Sampling {
    pub temperature: f64,
    pub top_k: i64,
    pub top_p: f64,
    pub min_p: f64,
    pub repetition_penalty: f64,
    pub max_new_tokens: i64,
}

impl Manifest {
    /// Parses a manifest; the error is `field: reason`.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let mut data = read(text)?;
        let mut manifest = Manifest::of(&data);
        manifest.check_relations(&data)?;
        let adapters = taken(&mut data, "adapters");
        taken(&mut data, "files"); // a manifest may list many, and each adapter would have a copy
        for (name, adapter) in fields(&adapters) {
            manifest.adapters.push(Adapter::of(name, adapter, &data)?);
        }
        Ok(manifest)
    }

    pub fn adapter(&self, name: &str) -> Option<&Adapter> {
        self.adapters.iter().find(|adapter| adapter.name == name)
    }

    pub fn file(&self, name: &str) -> Option<&FileFacts> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The names of the files that store prefixes, those of adapters too.
    pub fn prefix_files(&self) -> Vec<String> {
        let mut files: Vec<String> = self.prefixes.iter().map(|name| prefix_file(name)).collect();
        for adapter in &self.adapters {
            files.extend(adapter.manifest.prefixes.iter().map(|name| adapter.file(&prefix_file(name))));
        }
        files
    }

    fn of(data: &Json) -> Manifest {
        let (model, speculation, sampling) = (&data["model"], &data["speculation"], &data["sampling_defaults"]);
        let methods: Vec<Method> = fields(&data["methods"]).map(|(name, method)| Method::of(name, method)).collect();
        let mut verify: Vec<Method> = fields(&data["methods"]).map(|(name, method)| Method::of(name, method)).collect();
        verify.retain(|method| method.name.starts_with("verify_"));
        verify.sort_by_key(|method| method.rows);
        Manifest {
            target: text(&data["target"]),
            capacity: count(&data["cache"]["capacity"]),
            cache_bytes: cache_bytes(&data["methods"]),
            snr_db: fields(&data["parity"])
                .filter_map(|(name, proof)| Some((name.clone(), proof["metrics"].get("snr_db")?.number()?)))
                .collect(),
            vocab_size: count(&model["vocab_size"]),
            num_streams: count(&speculation["num_streams"]),
            top_k: count(&speculation["top_k"]),
            stream_vocab_size: count(&speculation["stream_vocab_size"]),
            prefill_rows: methods.iter().find(|method| method.name == "prefill").map_or(0, |method| method.rows),
            verify,
            deferred: methods.iter().any(|method| method.name == "streams"),
            methods,
            parent_rank: count(&speculation["parent_rank"]),
            bos_token_id: optional(&model["bos_token_id"]),
            eos_token_ids: items(&model["eos_token_ids"]).iter().map(count).collect(),
            chat_template: model["chat_template"].text().map(str::to_owned),
            sampling: Sampling {
                temperature: number(&sampling["temperature"]),
                top_k: count(&sampling["top_k"]),
                top_p: number(&sampling["top_p"]),
                min_p: number(&sampling["min_p"]),
                repetition_penalty: number(&sampling["repetition_penalty"]),
                max_new_tokens: count(&sampling["max_new_tokens"]),
            },
            prefixes: fields(&data["prefixes"]).map(|(name, _)| name.clone()).collect(),
            files: fields(&data["files"])
                .map(|(name, facts)| FileFacts {
                    name: name.clone(),
                    sha256: text(&facts["sha256"]),
                    bytes: count(&facts["bytes"]) as u64,
                })
                .collect(),
            adapters: Vec::new(),
        }
    }

    /// Relations between fields, which the schema cannot express.
    fn check_relations(&self, data: &Json) -> Result<(), String> {
        let names: HashSet<&str> = self.methods.iter().map(|method| method.name.as_str()).collect();
        for name in ["prefill", "decode"] {
            require(names.contains(name), || format!("methods.{name}: missing"))?;
        }
        let decode = self.methods.iter().find(|method| method.name == "decode");
        require(decode.is_some_and(|method| method.rows == 1), || "methods.decode.rows: must be 1".into())?;
        for Method { name, rows, keep, stream_nodes } in &self.methods {
            let known = ["prefill", "decode", "streams"].contains(&name.as_str()) || *name == format!("verify_{rows}");
            require(known, || format!("methods.{name}: not prefill, decode, streams or verify_<rows>"))?;
            require(keep.is_none_or(|keep| keep <= *rows), || format!("methods.{name}.keep: above its rows"))?;
            require(stream_nodes.is_none_or(|nodes| nodes <= keep.unwrap_or(0)), || {
                format!("methods.{name}.stream_nodes: above its keep")
            })?;
            require(*rows <= self.capacity, || format!("methods.{name}.rows: above cache.capacity"))?;
        }
        let (model, speculation) = (&data["model"], &data["speculation"]);
        require(count(&model["num_heads"]) % count(&model["num_kv_heads"]) == 0, || {
            "model.num_kv_heads: does not divide num_heads".into()
        })?;
        for token in self.eos_token_ids.iter().chain(self.bos_token_id.iter()) {
            require(*token < self.vocab_size, || format!("model: token id {token} is outside the vocabulary"))?;
        }
        let num_layers = count(&model["num_layers"]);
        require(count(&speculation["num_msa_layers"]) <= num_layers, || {
            "speculation.num_msa_layers: above model.num_layers".into()
        })?;
        require(optional(&speculation["prune_layer"]).is_none_or(|layer| layer < num_layers), || {
            "speculation.prune_layer: must be below model.num_layers".into()
        })?;
        require(count(&speculation["stream_vocab_size"]) <= self.vocab_size, || {
            "speculation.stream_vocab_size: above vocab_size".into()
        })?;
        let widths: Vec<i64> = self.verify.iter().map(|method| method.rows).filter(|&rows| rows > 1).collect();
        require(optional(&speculation["default_width"]).is_none_or(|width| widths.contains(&width)), || {
            format!("speculation.default_width: not one of {widths:?}")
        })?;
        require(self.num_streams == 0 || !widths.is_empty(), || "methods: streams without a verify method".into())?;
        let schedule = text(&speculation["schedule"]);
        require((schedule == "fused") != self.deferred, || {
            format!("speculation.schedule: {schedule} does not fit the methods")
        })?;
        let operators = items(&data["required_operators"]);
        require((data["kernels"] == Json::Bool(true)) != operators.is_empty(), || {
            "required_operators: does not fit kernels".into()
        })?;
        for name in operators.iter().map(text) {
            let own = name.strip_prefix("streamfuse::").and_then(|name| name.strip_suffix(".out"));
            require(own.is_some_and(|own| OPERATORS.contains(&own)), || {
                let name = quoted(&name);
                format!(
                    "required_operators: this version has no {name:.80}; upgrade streamfuse or export the bundle again"
                )
            })?;
        }
        let parity = &data["parity"];
        require(fields(parity).all(|(name, _)| names.contains(name.as_str())), || {
            "parity: names a method that is not there".into()
        })?;
        for Method { name, .. } in &self.methods {
            // Prefill has no metrics of its own: the methods that read its cache have them.
            let proven = parity.get(name).is_some_and(|proof| fields(&proof["metrics"]).next().is_some());
            require(proven || name == "prefill", || {
                format!("parity.{name}: missing, but every method is checked at export; export the bundle again")
            })?;
        }
        for (name, prefix) in fields(&data["prefixes"]) {
            check_name("prefixes", name)?;
            require(count(&prefix["tokens"]) < self.capacity, || {
                format!("prefixes.{name}.tokens: must be below cache.capacity, to leave room for a question")
            })?;
        }
        self.files.iter().try_for_each(|file| check_file_name(&file.name))
    }
}

/// The file of a stored prefix, in the bundle or in the folder of an adapter.
pub fn prefix_file(name: &str) -> String {
    format!("prefixes/{name}.cache")
}

fn check_name(field: &str, name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    let fits = (1..=LONGEST_NAME).contains(&name.len());
    require(fits && !name.starts_with(['_', '-']) && name.chars().all(plain), || {
        format!(
            "{field}: the name {} must be 1 to {LONGEST_NAME} of a-z, 0-9, _ and -, and begin with a letter or digit",
            quoted(name)
        )
    })
}

/// How the names of inputs that are caches begin; the last one is ONNX's.
const CACHES: [&str; 4] = ["key_cache_", "value_cache_", "state_", "past_key_values."];

/// The size of the caches, which are inputs of `decode`.
fn cache_bytes(methods: &Json) -> i64 {
    let Some(decode) = methods.get("decode") else { return 0 };
    let is_cache = |name: String| CACHES.iter().any(|beginning| name.starts_with(beginning));
    let bytes_of = |input: &Json| {
        let element = match text(&input["dtype"]).as_str() {
            "float32" | "int32" => 4,
            "float16" | "bfloat16" => 2,
            "int64" => 8,
            _ => 1,
        };
        items(&input["shape"]).iter().map(count).fold(element, i64::saturating_mul)
    };
    let caches = items(&decode["inputs"]).iter().filter(|input| is_cache(text(&input["name"])));
    caches.map(bytes_of).fold(0, i64::saturating_add)
}

/// The text of a manifest while this adapter is chosen.
pub fn text_with_adapter(text: &str, name: &str) -> Result<String, String> {
    let mut data = read(text)?;
    let adapters = taken(&mut data, "adapters");
    serde_json::to_string(&with_adapter(data, &adapters[name])).map_err(|error| error.to_string())
}

/// The fields of a manifest, those with defaults too, after the checks that the schema expresses.
fn read(text: &str) -> Result<Json, String> {
    let mut data = Json::parse_bounded(text, BOUNDS).map_err(|error| format!("not valid JSON ({error})"))?;
    check_version(&data)?;
    match problems(manifest_schema(), &mut data) {
        Problems { first: None, .. } => Ok(data),
        Problems { first: Some(first), others: 0 } => Err(first),
        Problems { first: Some(first), others } => Err(format!("{first} (and {others} more)")),
    }
}

/// Takes a field whose value is an object, and leaves an empty one.
fn taken(data: &mut Json, field: &str) -> Json {
    let Json::Object(own) = data else { unreachable!("a manifest is an object") };
    own.insert(field.to_owned(), Json::Object(Box::default())).expect("the schema says that it is there")
}

/// `data` is a manifest without its adapters.
fn with_adapter(mut data: Json, adapter: &Json) -> Json {
    let Json::Object(own) = &mut data else { unreachable!("a manifest is an object") };
    for field in OF_ADAPTER {
        own.insert(field.to_owned(), adapter[field].clone());
    }
    if let Some(Json::Object(model)) = own.get_mut("model") {
        model.insert("chat_template".to_owned(), adapter["chat_template"].clone());
    }
    data
}

impl Adapter {
    /// `whole` is the bundle's manifest, without its adapters.
    fn of(name: &str, adapter: &Json, whole: &Json) -> Result<Adapter, String> {
        check_name("adapters", name)?;
        let of_kernels = whole["kernels"] == Json::Bool(true);
        require(of_kernels, || "adapters: need a bundle of the backend kernels".into())?;
        let data = with_adapter(whole.clone(), adapter);
        let manifest = Manifest::of(&data);
        manifest.check_relations(&data).map_err(|reason| format!("adapters.{name}.{reason}"))?;
        Ok(Adapter { name: name.to_owned(), manifest })
    }

    /// The name of one of its files in the bundle.
    pub fn file(&self, name: &str) -> String {
        format!("{ADAPTERS}{}/{name}", self.name)
    }
}

impl Method {
    fn of(name: &str, data: &Json) -> Method {
        Method {
            name: name.to_owned(),
            rows: count(&data["rows"]),
            keep: optional(&data["keep"]),
            stream_nodes: optional(&data["stream_nodes"]),
        }
    }
}

/// Checked first, since a manifest of another format may violate every other rule.
fn check_version(data: &Json) -> Result<(), String> {
    let reads = manifest_schema()["properties"]["format_version"]["const"].whole().unwrap_or_default();
    let Some(version) = data.get("format_version") else {
        return Err("format_version: missing; this is not the manifest of a streamfuse bundle".into());
    };
    match version.whole() {
        None => Err(format!("format_version: must be an integer, is {:.40}", version.to_string())),
        Some(version) if version > reads => Err(format!(
            "format_version: {version} is newer than {reads}, the newest that this version of streamfuse reads; \
             upgrade streamfuse or export the bundle again"
        )),
        Some(version) if version < reads => Err(format!(
            "format_version: the bundle was written in format {version}, this version of streamfuse reads {reads}; \
             export it again with `streamfuse export`"
        )),
        Some(_) => Ok(()),
    }
}

/// Rejects names that could leave the folder, or refer to different files on different systems.
fn check_file_name(name: &str) -> Result<(), String> {
    let plain = name.split('/').all(|part| !["", ".", ".."].contains(&part))
        && !name.chars().any(|c| "\\:*?\"<>|".contains(c) || c < ' ');
    require(plain, || format!("files: {} is not a plain relative path inside the bundle", quoted(name)))?;
    require(name != NAME, || format!("files: {NAME} cannot list itself"))?;
    require(name != signature::NAME, || format!("files: {NAME} cannot list its signature, {name}"))
}

fn require(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds {
        Ok(())
    } else {
        Err(reason())
    }
}

// Access to what the schema guarantees; anything else is a bug, which the C interface reports as SF_BROKEN.

fn fields(value: &Json) -> impl Iterator<Item = (&String, &Json)> {
    value.object().expect("the schema says object").iter()
}

fn items(value: &Json) -> &[Json] {
    value.list().expect("the schema says array")
}

fn text(value: &Json) -> String {
    value.text().expect("the schema says string").to_owned()
}

fn count(value: &Json) -> i64 {
    value.whole().and_then(|number| number.try_into().ok()).expect("the schema says a count up to 2**53")
}

fn optional(value: &Json) -> Option<i64> {
    (*value != Json::Null).then(|| count(value))
}

fn number(value: &Json) -> f64 {
    value.number().expect("the schema says number")
}
