//! Opens a bundle and checks everything about its folder.

use std::collections::HashSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{bad_argument, bad_file, Failure, Result, BAD_TABLES};
use crate::files::{hex_sha256, map, Folder};
use crate::json::quoted;
use crate::language::Language;
use crate::manifest::{self, prefix_file, Manifest, DRAFT};
use crate::npz::{self, Array};
use crate::signature::{self, PublicKey};
use crate::tables::{self, Tensor};
use crate::watch::Watch;

const MOST_MANIFEST_BYTES: u64 = 16 << 20;
pub const MOST_TOKENIZER_BYTES: u64 = 128 << 20;
const TOKENIZER: &str = "tokenizer.json";
const SELFTEST: &str = "selftest.npz";
const MOST_SELFTEST_BYTES: u64 = 1 << 30;

/// A bundle, or one of its adapters: the same folder with another manifest and other drafting tables.
pub struct Bundle {
    pub manifest_text: CString,
    pub manifest: Manifest,
    pub graph: CString,
    pub identity: CString,
    pub folder: CString,
    files: Folder,
    is_adapter: bool,
    pub language: Arc<Language>,
    pub tensors: Vec<Tensor>,
    pub tables: Option<Mmap>,
    pub prefixes: Vec<CString>, // paths
}

impl Bundle {
    /// A key requires a valid signature, and hashes, since the signature of the manifest alone does not cover other
    /// files. `step` is that of `Watch`, for the bytes that are hashed.
    pub fn open(path: &Path, hash: bool, key: Option<&PublicKey>, step: &dyn Fn(u64, u64) -> bool) -> Result<Bundle> {
        let folder = Folder::open(path)?;
        let (text, manifest) = read_manifest(&folder, key)?;
        let at_manifest = |reason: String| bad_file(format!("{}: {reason}", folder.file(manifest::NAME).display()));
        let listed: HashSet<&str> = manifest.files.iter().map(|facts| facts.name.as_str()).collect();
        if let Some(name) = required(&manifest).iter().find(|name| !listed.contains(name.as_str())) {
            return Err(at_manifest(format!("files: has no {name}")));
        }
        let tokenizer_bytes = manifest.file(TOKENIZER).map_or(0, |facts| facts.bytes);
        if tokenizer_bytes > MOST_TOKENIZER_BYTES {
            return Err(at_manifest(format!(
                "files.{TOKENIZER}.bytes: {tokenizer_bytes} bytes is too large for a tokenizer"
            )));
        }
        let total = manifest.files.iter().map(|facts| facts.bytes).sum();
        let mut watch = (hash || key.is_some()).then_some(Watch { step, total, done: 0 });
        manifest.files.iter().try_for_each(|facts| folder.check(facts, watch.as_mut()))?;

        let path = folder.file(TOKENIZER);
        let file = folder.read(&path, tokenizer_bytes)?;
        let (bos, eos) = (manifest.bos_token_id, &manifest.eos_token_ids);
        let (template, vocab_size) = (manifest.chat_template.clone(), usize::try_from(manifest.vocab_size).ok());
        let language = Arc::new(Language::new(&file, &path, template, bos, eos, vocab_size)?);
        let (tensors, tables) = match manifest.file(DRAFT) {
            Some(_) => read_tables(&folder.file(DRAFT))?,
            None => (Vec::new(), None),
        };
        Ok(Bundle {
            graph: c_string(graph(&folder, &manifest).into_os_string().into_vec())?,
            identity: c_string(identity(&manifest).into_bytes())?,
            manifest_text: c_string(text.into_bytes())?,
            folder: c_string(folder.path().as_os_str().to_owned().into_vec())?,
            prefixes: prefixes(&folder, manifest.prefixes.iter().map(|name| prefix_file(name)))?,
            files: folder,
            is_adapter: false,
            manifest,
            language,
            tensors,
            tables,
        })
    }

    /// The bundle with one of its adapters. Its files were checked when the bundle was opened.
    pub fn adapter(&self, name: &str) -> Result<Bundle> {
        let Some(chosen) = self.manifest.adapter(name) else {
            let names: Vec<&str> = self.manifest.adapters.iter().map(|adapter| adapter.name.as_str()).collect();
            return Err(bad_argument(format!(
                "{} has no adapter {}; it has {}",
                self.folder.to_string_lossy(),
                quoted(name),
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            )));
        };
        let text = manifest::text_with_adapter(&self.manifest_text.to_string_lossy(), name).map_err(bad_file)?;
        let manifest = Manifest::parse(&text).map_err(bad_file)?;
        let language = if manifest.chat_template == self.manifest.chat_template {
            self.language.clone()
        } else {
            let (path, template) = (self.files.file(TOKENIZER), manifest.chat_template.clone());
            Arc::new(self.language.with_template(&path, template, manifest.bos_token_id)?)
        };
        let draft = chosen.file(DRAFT);
        let (tensors, tables) = match manifest.file(&draft) {
            Some(_) => read_tables(&self.files.file(&draft))?,
            None => (Vec::new(), None),
        };
        Ok(Bundle {
            graph: self.graph.clone(),
            identity: c_string([self.identity.as_bytes(), b" ", name.as_bytes()].concat())?,
            manifest_text: c_string(text.into_bytes())?,
            folder: self.folder.clone(),
            prefixes: prefixes(&self.files, manifest.prefixes.iter().map(|name| chosen.file(&prefix_file(name))))?,
            files: self.files.clone(),
            is_adapter: true,
            manifest,
            language,
            tensors,
            tables,
        })
    }

    /// The arrays of selftest.npz. An adapter has none.
    pub fn selftest(&self) -> Result<Vec<Array>> {
        if self.is_adapter {
            return Err(bad_argument("an adapter has no self-test; run that of its base model"));
        }
        let path = self.files.file(SELFTEST);
        let at_file = |reason: &str| bad_file(format!("{}: {reason}", path.display()));
        let facts = self.manifest.file(SELFTEST).ok_or_else(|| {
            at_file("not in the manifest; this bundle has no self-test: export it again with `streamfuse export`")
        })?;
        if facts.bytes > MOST_SELFTEST_BYTES {
            return Err(at_file(&format!("{} bytes is too large for a self-test", facts.bytes)));
        }
        npz::parse(&self.files.read(&path, facts.bytes)?).map_err(|reason| at_file(&reason))
    }
}

/// What a bundle occupies in memory, in bytes: the files of its graphs, those of its drafting tables, and the KV cache
/// of one sequence.
pub struct Estimate {
    pub weights: i64,
    pub tables: i64,
    pub cache: i64,
}

impl Estimate {
    /// Reads only the manifest.
    pub fn of(path: &Path) -> Result<Estimate> {
        let (_, manifest) = read_manifest(&Folder::open(path)?, None)?;
        let bytes = |wanted: &dyn Fn(&str) -> bool| {
            let sizes = manifest.files.iter().filter(|facts| wanted(&facts.name)).map(|facts| facts.bytes as i64);
            sizes.sum()
        };
        let prefix_files: HashSet<String> = manifest.prefix_files().into_iter().collect();
        Ok(Estimate {
            weights: bytes(&|name| {
                let known = ["export_report.json", TOKENIZER, DRAFT, SELFTEST];
                !known.contains(&name) && !name.starts_with(manifest::ADAPTERS) && !prefix_files.contains(name)
            }),
            tables: bytes(&|name| name == DRAFT),
            cache: manifest.cache_bytes,
        })
    }
}

/// Checks the manifest in a folder and, with a key, its signature. No other file needs to exist.
pub fn verify_manifest(path: &Path, key: Option<&PublicKey>) -> Result<()> {
    read_manifest(&Folder::open(path)?, key).map(|_| ())
}

/// The manifest and its text; with a key, its signature is checked before anything in it is used.
fn read_manifest(folder: &Folder, key: Option<&PublicKey>) -> Result<(String, Manifest)> {
    let text = folder.read_manifest(MOST_MANIFEST_BYTES)?;
    if let Some(key) = key {
        check_signature(folder, &text, key)?;
    }
    let at_manifest = |reason: String| bad_file(format!("{}: {reason}", folder.file(manifest::NAME).display()));
    let text = String::from_utf8(text).map_err(|error| at_manifest(format!("not valid JSON ({error})")))?;
    let manifest = Manifest::parse(&text).map_err(at_manifest)?;
    Ok((text, manifest))
}

fn check_signature(folder: &Folder, manifest: &[u8], key: &PublicKey) -> Result<()> {
    let signature = folder.read_signature()?;
    if key.signed(manifest, &signature) {
        return Ok(());
    }
    Err(bad_file(format!(
        "{}: does not sign this {} with the given public key; the bundle was changed, or another key signed it",
        folder.file(signature::NAME).display(),
        manifest::NAME
    )))
}

/// Files that are required to run a bundle of this target.
fn required(manifest: &Manifest) -> Vec<String> {
    let mut names = vec![TOKENIZER.to_owned()];
    match manifest.target.as_str() {
        "executorch" => names.push("model.pte".to_owned()),
        "coreml" => names.push("model.mlpackage/Manifest.json".to_owned()),
        _ => names.extend(manifest.methods.iter().map(|method| format!("{}.onnx", method.name))),
    }
    if manifest.parent_rank > 0 {
        names.push(DRAFT.to_owned());
    }
    let drafting = manifest.adapters.iter().filter(|adapter| adapter.manifest.parent_rank > 0);
    names.extend(drafting.map(|adapter| adapter.file(DRAFT)));
    names.extend(manifest.prefix_files());
    names
}

fn graph(folder: &Folder, manifest: &Manifest) -> PathBuf {
    match manifest.target.as_str() {
        "executorch" => folder.file("model.pte"),
        "coreml" => folder.file("model.mlpackage"),
        _ => folder.path().to_owned(),
    }
}

fn prefixes(folder: &Folder, files: impl Iterator<Item = String>) -> Result<Vec<CString>> {
    files.map(|name| c_string(folder.file(&name).into_os_string().into_vec())).collect()
}

/// Identifies this bundle: a hash over the hashes of its files, except stored prefixes: they contain the identity, and
/// a bundle with another prefix computes the same.
fn identity(manifest: &Manifest) -> String {
    let prefixes: HashSet<String> = manifest.prefix_files().into_iter().collect();
    let files = manifest.files.iter().filter(|file| !prefixes.contains(&file.name));
    let mut lines: Vec<(&str, String)> =
        files.map(|file| (file.name.as_str(), format!("{} {}", file.name, file.sha256))).collect();
    lines.sort_by_key(|(name, _)| *name);
    hex_sha256(lines.into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n").as_bytes())
}

fn read_tables(path: &Path) -> Result<(Vec<Tensor>, Option<Mmap>)> {
    let file = map(path)?;
    match tables::parse(&file) {
        Ok(tensors) => Ok((tensors, Some(file))),
        Err(reason) => Err(Failure { code: BAD_TABLES, sentence: format!("{}: {reason}", path.display()) }),
    }
}

fn c_string(bytes: Vec<u8>) -> Result<CString> {
    CString::new(bytes).map_err(|_| bad_argument("a string contains a zero byte"))
}
