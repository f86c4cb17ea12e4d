//! Access to an untrusted folder: only regular files inside it are read, up to their expected size.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use crate::error::{bad_file, of_system, Failure, Result};
use crate::manifest::{self, FileFacts};
use crate::signature;
use crate::watch::Watch;

const BLOCK_BYTES: usize = 1 << 20;

#[derive(Clone)]
pub struct Folder {
    path: PathBuf,
    root: PathBuf, // the same with links resolved
}

impl Folder {
    pub fn open(path: &Path) -> Result<Folder> {
        let mut path: PathBuf = path.components().collect();
        if let (Err(_), Some(aside)) = (fs::symlink_metadata(&path), set_aside(&path)) {
            if aside.is_dir() {
                path = aside; // a writer was killed before it renamed the new bundle
            }
        }
        let shown = path.display();
        match fs::metadata(&path) {
            Err(_) if is_hub_name(&path) => Err(bad_file(format!(
                "{shown}: no such folder; if it is a model on the Hugging Face Hub, {}",
                becomes_bundle(&path)
            ))),
            Err(_) => Err(bad_file(format!("{shown}: no such folder"))),
            Ok(facts) if !facts.is_dir() && path.extension().is_some_and(|end| end == "gguf") => {
                Err(bad_file(format!("{shown}: {}", a_model(&path))))
            }
            Ok(facts) if !facts.is_dir() => {
                Err(bad_file(format!("{shown}: not a folder; a bundle is a folder with {}", manifest::NAME)))
            }
            Ok(_) => match fs::canonicalize(&path) {
                Ok(root) => Ok(Folder { path, root }),
                Err(error) => Err(bad_file(format!("{shown}: cannot be read ({})", of_system(&error)))),
            },
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The text of the manifest.
    pub fn read_manifest(&self, most_bytes: u64) -> Result<Vec<u8>> {
        let path = self.file(manifest::NAME);
        // The folder of a training run has a config.json too, but no tokenizer.
        let has = |name: &str| self.file(name).is_file();
        let what = match has("config.json") && (has("tokenizer.json") || has("tokenizer.model")) {
            true => a_model(&self.path),
            false => "not a streamfuse bundle".to_owned(),
        };
        let bytes = self.find_unlisted(&path, &format!("missing; {} is {what}", self.path.display()))?;
        if bytes > most_bytes {
            return Err(bad_file(format!("{}: {bytes} bytes is too large for a manifest", path.display())));
        }
        self.read(&path, bytes)
    }

    pub fn read_signature(&self) -> Result<Vec<u8>> {
        let path = self.file(signature::NAME);
        let bytes =
            self.find_unlisted(&path, "missing; the bundle is not signed (`streamfuse bundle sign` signs one)")?;
        if bytes != signature::BYTES {
            let expected = signature::BYTES;
            return Err(bad_file(format!(
                "{}: {expected} bytes expected, {bytes} found; damaged or cut short",
                path.display()
            )));
        }
        self.read(&path, bytes)
    }

    /// The size of a file that is not in the manifest; the caller limits it.
    fn find_unlisted(&self, path: &Path, missing: &str) -> Result<u64> {
        let shown = path.display();
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(bad_file(format!("{shown}: {missing}")))
            }
            Err(error) => return Err(unreadable(path, &error)),
            Ok(_) => (),
        }
        if self.leaves(path) {
            return Err(bad_file(format!("{shown}: a link out of the bundle")));
        }
        let facts = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if !facts.is_file() {
            return Err(bad_file(format!("{shown}: cannot be read (not a regular file)")));
        }
        Ok(facts.len())
    }

    /// Checks name, size and, with a watch, hash of a file in the manifest.
    pub fn check(&self, facts: &FileFacts, hash: Option<&mut Watch>) -> Result<()> {
        let path = self.file(&facts.name);
        let shown = path.display();
        if self.leaves(&path) {
            return Err(bad_file(format!("{shown}: files: a link out of the bundle")));
        }
        let found = match fs::metadata(&path) {
            Ok(found) if found.is_file() => found.len(),
            Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Err(bad_file(format!("{shown}: files: cannot be read ({})", of_system(&error))))
            }
            _ => {
                return Err(bad_file(format!(
                    "{shown}: files: listed in {}, but there is no such file",
                    manifest::NAME
                )))
            }
        };
        if found != facts.bytes {
            return Err(bad_file(format!(
                "{shown}: files.bytes: {} expected, {found} found; damaged or cut short",
                facts.bytes
            )));
        }
        if let Some(watch) = hash {
            if sha256_of(&path, watch)? != facts.sha256 {
                return Err(bad_file(format!(
                    "{shown}: files.sha256: does not match; the file was changed or damaged"
                )));
            }
        }
        Ok(())
    }

    /// The bytes of a checked file, at most as many as it had then.
    pub fn read(&self, path: &Path, bytes: u64) -> Result<Vec<u8>> {
        let mut data = Vec::with_capacity(bytes as usize + 1);
        let file = File::open(path).map_err(|error| unreadable(path, &error))?;
        file.take(bytes).read_to_end(&mut data).map_err(|error| unreadable(path, &error))?;
        Ok(data)
    }

    /// Whether a link leads out of the folder; false for a file that does not exist.
    fn leaves(&self, path: &Path) -> bool {
        fs::canonicalize(path).is_ok_and(|place| !place.starts_with(&self.root))
    }
}

/// The bytes of a regular file that is not in a bundle.
pub fn read_bounded(path: &Path, most_bytes: u64) -> Result<Vec<u8>> {
    let facts = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if !facts.is_file() {
        return Err(bad_file(format!("{}: cannot be read (not a regular file)", path.display())));
    }
    if facts.len() > most_bytes {
        return Err(bad_file(format!("{}: {} bytes is too large for a tokenizer", path.display(), facts.len())));
    }
    fs::read(path).map_err(|error| unreadable(path, &error))
}

/// What a path is that other commands take as a model, and how it becomes a bundle.
fn a_model(path: &Path) -> String {
    format!("a model, not a bundle; {}", becomes_bundle(path))
}

fn becomes_bundle(model: &Path) -> String {
    format!("`streamfuse export --model {} -o BUNDLE` makes a bundle of it", model.display())
}

/// Whether a path that does not exist has the form of a model's name on the Hugging Face Hub, owner/name. Where the
/// first part is a folder here, the whole is rather a path in it with a mistake.
fn is_hub_name(path: &Path) -> bool {
    let Some((owner, name)) = path.to_str().and_then(|text| text.split_once('/')) else { return false };
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
    };
    is_part(owner) && is_part(name) && !Path::new(owner).exists()
}

/// The path to which the writer renames an old bundle, on systems that cannot exchange two folders atomically.
fn set_aside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_string_lossy();
    Some(path.with_file_name(format!(".{name}.replaced")))
}

/// Maps a checked file.
#[allow(unsafe_code)]
pub fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    // SAFETY: an open bundle must not be modified, as the header states; the memory is only read.
    unsafe { Mmap::map(&file) }.map_err(|error| unreadable(path, &error))
}

pub fn hex_sha256(data: &[u8]) -> String {
    hex(&Sha256::digest(data))
}

fn sha256_of(path: &Path, watch: &mut Watch) -> Result<String> {
    let (mut digest, mut block) = (Sha256::new(), vec![0; BLOCK_BYTES]);
    let mut file = File::open(path).map_err(|error| unreadable(path, &error))?;
    loop {
        match file.read(&mut block).map_err(|error| unreadable(path, &error))? {
            0 => return Ok(hex(&digest.finalize())),
            n => {
                digest.update(&block[..n]);
                watch.add(n)?;
            }
        }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    bad_file(format!("{}: cannot be read ({})", path.display(), of_system(error)))
}
