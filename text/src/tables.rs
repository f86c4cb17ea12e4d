//! The drafting tables: a safetensors file whose header is checked completely.

use crate::json::{quoted, Json};

const MOST_HEADER_BYTES: u64 = 1_000_000;
const MOST_DIMENSIONS: usize = 8;
const MOST_ELEMENTS: i128 = 1 << 48; // the other dimensions of an empty tensor count too, as in numpy

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DType {
    F16,
    F32,
    I32,
    I64,
}

impl DType {
    fn of(name: &str) -> Option<DType> {
        match name {
            "F16" => Some(DType::F16),
            "F32" => Some(DType::F32),
            "I32" => Some(DType::I32),
            "I64" => Some(DType::I64),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            DType::F16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
        }
    }
}

#[derive(Debug)]
pub struct Tensor {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub start: usize, // offset of its data in the file
    end: usize,
}

/// The tensors in the order of their data. The error message does not contain the file's name.
pub fn parse(file: &[u8]) -> Result<Vec<Tensor>, String> {
    let length = file.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let room = (file.len() as u64).saturating_sub(8);
    if file.len() < 8 || length < 2 || length > MOST_HEADER_BYTES.min(room) {
        return Err(format!(
            "not a whole safetensors file ({} bytes, of which {length} should be its header)",
            file.len()
        ));
    }
    let start = 8 + length as usize;
    let damaged = |error: &dyn std::fmt::Display| format!("the header is damaged ({error})");
    let header = std::str::from_utf8(&file[8..start]).map_err(|error| damaged(&error))?;
    let header = Json::parse(header).map_err(|error| damaged(&error))?;
    let header = header.object().ok_or("the header is not a JSON object")?;

    let mut tensors = Vec::new();
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        tensors.push(tensor_of(name, entry, start, file.len())?);
    }
    tensors.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
    let mut reached = start;
    for tensor in &tensors {
        let what = what(&tensor.name);
        if tensor.start != reached {
            return Err(format!(
                "{what} begins at {}, which overlaps another tensor or leaves a gap",
                tensor.start - start
            ));
        }
        if tensor.start % tensor.dtype.bytes() != 0 {
            return Err(format!("{what} is not aligned to its {} bytes per number", tensor.dtype.bytes()));
        }
        reached = tensor.end;
    }
    match file.len() - reached {
        0 => Ok(tensors),
        bytes => Err(format!("{bytes} bytes at the end belong to no tensor")),
    }
}

fn what(name: &str) -> String {
    format!("tensor {:.80}", quoted(name))
}

fn tensor_of(name: &str, entry: &Json, start: usize, file_bytes: usize) -> Result<Tensor, String> {
    let (what, room) = (what(name), file_bytes - start);
    let (Some(dtype), Some(shape), Some(offsets), Some(3)) =
        (entry.get("dtype"), entry.get("shape"), entry.get("data_offsets"), entry.object().map(|entry| entry.len()))
    else {
        return Err(format!("{what} is not described by dtype, shape and data_offsets"));
    };
    if name.contains('\0') {
        return Err(format!("{what} has a zero byte in its name"));
    }
    let Some(kind) = dtype.text().and_then(DType::of) else {
        return Err(format!("{what} has dtype {}, not one of F16, F32, I32, I64", cut(dtype, 40)));
    };
    let sizes = counts(shape)
        .filter(|sizes| sizes.len() <= MOST_DIMENSIONS && product(sizes.iter().map(|&n| n.max(1))) <= MOST_ELEMENTS)
        .ok_or_else(|| format!("{what} has shape {}", cut(shape, 80)))?;
    let (begin, end) = match counts(offsets).as_deref() {
        Some(&[begin, end]) if begin <= end && end <= room as i128 => (begin, end),
        _ => {
            return Err(format!(
                "{what} has data_offsets {}, which are not a valid range of {room} bytes",
                cut(offsets, 80)
            ))
        }
    };
    if end - begin != product(sizes.iter().copied()) * kind.bytes() as i128 {
        return Err(format!(
            "{what} is {} {shape}, which are not the {} bytes of its data",
            dtype.text().unwrap_or_default(),
            end - begin
        ));
    }
    Ok(Tensor {
        name: name.to_owned(),
        dtype: kind,
        shape: sizes.iter().map(|&n| n as i64).collect(),
        start: start + begin as usize,
        end: start + end as usize,
    })
}

fn cut(value: &Json, most: usize) -> String {
    value.to_string().chars().take(most).collect()
}

fn counts(value: &Json) -> Option<Vec<i128>> {
    value.list()?.iter().map(|item| item.whole().filter(|&n| n >= 0)).collect()
}

fn product(sizes: impl Iterator<Item = i128>) -> i128 {
    sizes.fold(1, i128::saturating_mul)
}
