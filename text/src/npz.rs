//! Reads selftest.npz: an uncompressed zip archive of NumPy arrays, as `numpy.savez` writes it.

const MOST_HEADER_BYTES: usize = 4096; // of one array
const END: &[u8] = b"PK\x05\x06"; // of the archive's directory
const ENTRY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

#[derive(Debug)]
pub enum Numbers {
    I64(Vec<i64>),
    F32(Vec<f32>),
}

#[derive(Debug)]
pub struct Array {
    pub name: String,
    pub shape: Vec<i64>,
    pub numbers: Numbers,
}

/// The arrays in the order of the archive. The error message does not contain the file's name.
pub fn parse(file: &[u8]) -> Result<Vec<Array>, String> {
    let cut = || "not a whole .npz archive".to_owned();
    // The directory ends with a comment of at most 65,535 bytes; savez writes none.
    let end = file.len().checked_sub(22).filter(|&end| file[end..].starts_with(END)).ok_or_else(cut)?;
    let (count, mut at) = (u16_at(file, end + 10).ok_or_else(cut)?, size_at(file, end + 16).ok_or_else(cut)?);
    let mut arrays = Vec::new();
    for _ in 0..count {
        let entry = file.get(at..).filter(|rest| rest.len() >= 46 && rest.starts_with(ENTRY)).ok_or_else(cut)?;
        let sizes = [28, 30, 32].map(|field| usize::from(u16_at(entry, field).unwrap_or_default()));
        let name = entry.get(46..46 + sizes[0]).ok_or_else(cut)?;
        let name = std::str::from_utf8(name).map_err(|_| cut())?.trim_end_matches(".npy").to_owned();
        let what = format!("array {name:.80}");
        if name.contains('\0') {
            return Err(format!("{what} has a zero byte in its name"));
        }
        if u16_at(entry, 10) != Some(0) {
            return Err(format!("{what} is compressed; streamfuse writes uncompressed arrays"));
        }
        let (crc, bytes) = (u32_at(entry, 16).ok_or_else(cut)?, size_at(entry, 24).ok_or_else(cut)?);
        let data = member(file, size_at(entry, 42).ok_or_else(cut)?, bytes).ok_or_else(cut)?;
        if crc32(data) != crc {
            return Err(format!("{what} does not match its checksum; the file is damaged"));
        }
        arrays.push(array(name, data).ok_or_else(|| format!("{what} is not an array of int64 or float32 numbers"))?);
        at += 46 + sizes.iter().sum::<usize>();
    }
    Ok(arrays)
}

/// The bytes of a file in the archive, whose local header begins at `at`.
fn member(file: &[u8], at: usize, bytes: usize) -> Option<&[u8]> {
    let header = file.get(at..).filter(|rest| rest.starts_with(LOCAL))?;
    let start = 30 + usize::from(u16_at(header, 26)?) + usize::from(u16_at(header, 28)?);
    header.get(start..start.checked_add(bytes)?)
}

fn array(name: String, file: &[u8]) -> Option<Array> {
    if !file.starts_with(b"\x93NUMPY") {
        return None;
    }
    let (start, length) = match file.get(6)? {
        1 => (10, usize::from(u16_at(file, 8)?)),
        _ => (12, size_at(file, 8)?),
    };
    let header = std::str::from_utf8(file.get(start..start + length.min(MOST_HEADER_BYTES))?).ok()?;
    let data = file.get(start + length..)?;
    let field = |key: &str, end: char| header.split_once(key)?.1.split_once(end).map(|(value, _)| value);
    if field("'fortran_order': ", ',')? != "False" {
        return None;
    }
    let sizes = field("'shape': (", ')')?.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape = sizes.map(|size| size.parse().ok().filter(|&size: &i64| size >= 0)).collect::<Option<Vec<i64>>>()?;
    let count = shape.iter().try_fold(1_i64, |all, &size| all.checked_mul(size))?;
    let (numbers, bytes) = match field("'descr': '", '\'')? {
        "<i8" => (Numbers::I64(data.chunks_exact(8).map(|n| i64::from_le_bytes(n.try_into().unwrap())).collect()), 8),
        "<f4" => (Numbers::F32(data.chunks_exact(4).map(|n| f32::from_le_bytes(n.try_into().unwrap())).collect()), 4),
        _ => return None,
    };
    (count.checked_mul(bytes)? == data.len() as i64).then_some(Array { name, shape, numbers })
}

fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?))
}

/// A size or an offset.
fn size_at(file: &[u8], at: usize) -> Option<usize> {
    u32_at(file, at)?.try_into().ok()
}

/// The checksum of zip: CRC-32 of IEEE 802.3.
fn crc32(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut value, mut bit) = (i as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |sum, &byte| sum >> 8 ^ TABLE[(sum as u8 ^ byte) as usize])
}
