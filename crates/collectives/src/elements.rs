//! Elements of a program's buffer: as bytes without gaps, as a group wants them.
//!
//! Members may describe data of the same type signature by different datatypes: one has gaps, another has none. So a group
//! sees only bytes. Datatypes of our table are such bytes already; of others the MPI makes them (`PMPI_Pack`), and takes
//! the result (`PMPI_Unpack`). A reduction gets words, also of shorter integers. This file does not know what a call does with
//! the bytes.

use crate::abi::Abi;
use crate::mpi::Mpi;
use std::ffi::c_int;
use weir_engine::short_integers::{ShortInteger, WORD_BYTES};
use weir_link::copy::copy;

/// Data up to this length has a copy on the stack. Unit: bytes.
const SHORT_BYTES: usize = 128;

/// A buffer, as the arguments of a call describe it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffer {
    /// Its address.
    pub at: usize,
    /// Elements, of one block if the call has several.
    pub count: i64,
    /// The handle of the type of an element, as it came.
    pub datatype: usize,
}

/// What a datatype is, as far as copies need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// Length of the data. It follows from the type signature. Unit: bytes.
    pub bytes: usize,
    /// It is one of our table, so it has no gaps.
    pub is_known: bool,
}

impl Element {
    /// The element of a datatype. `None`: the MPI reports what is wrong.
    pub fn of(mpi: &Mpi, abi: &Abi, buffer: &Buffer) -> Option<Element> {
        let datatype = abi.handle(buffer.datatype);
        if let Some(facts) = abi.datatype(datatype) {
            return Some(Element { bytes: facts.bytes as usize, is_known: true });
        }
        if buffer.count <= 0 || datatype == abi.constants.null_datatype {
            return None;
        }
        let mut bytes = 0;
        // SAFETY: the MPI's function, and a variable for the result.
        let status = unsafe { (mpi.functions.type_size)(datatype, &mut bytes) };
        // A length beyond the range of the variable is negative.
        let bytes = usize::try_from(bytes).ok().filter(|_| status == 0)?;
        Some(Element { bytes, is_known: false })
    }
}

/// Elements whose data has a length that fits the arguments of `PMPI_Pack`.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    at: usize,
    count: c_int,
    datatype: usize,
    communicator: usize,
    /// Length of their data, or of their words. Unit: bytes.
    pub bytes: usize,
    /// The group gets a word for each element, which is such an integer.
    pub short: Option<ShortInteger>,
    /// The data is the memory at the address, so nobody needs to pack it.
    pub is_plain: bool,
}

impl Elements {
    /// `blocks` blocks of a buffer, which lie one after the other from the block `first` on.
    ///
    /// - `communicator`: the handle, for `PMPI_Pack` and errors.
    ///
    /// `None`: the MPI reports what is wrong.
    pub fn new(
        mpi: &Mpi,
        abi: &Abi,
        buffer: &Buffer,
        (first, blocks): (u32, u32),
        communicator: usize,
    ) -> Option<Elements> {
        let Element { bytes, is_known } = Element::of(mpi, abi, buffer)?;
        let datatype = abi.handle(buffer.datatype);
        let count = c_int::try_from(buffer.count.checked_mul(blocks.into())?).ok().filter(|&it| it >= 0)?;
        if is_known && buffer.at == 0 {
            return None;
        }
        let mut extent = bytes as isize;
        if !is_known && first > 0 {
            let mut lower_bound = 0;
            // SAFETY: the MPI's function, and variables for the results.
            let status = unsafe { (mpi.functions.type_get_extent)(datatype, &mut lower_bound, &mut extent) };
            if status != 0 {
                return None;
            }
        }
        let from_start =
            extent.checked_mul(isize::try_from(buffer.count.checked_mul(first.into())?).ok()?)?;
        let bytes = bytes.checked_mul(count as usize).filter(|&bytes| c_int::try_from(bytes).is_ok())?;
        let at = buffer.at.wrapping_add_signed(from_start);
        Some(Elements { at, count, datatype, communicator, bytes, short: None, is_plain: is_known })
    }

    /// The same for a reduction, which combines words.
    pub fn as_words(self, abi: &Abi) -> Elements {
        let short = abi.datatype(self.datatype).and_then(|facts| facts.reduced?.short);
        match short {
            None => self,
            Some(_) => Elements { bytes: self.count as usize * WORD_BYTES, short, is_plain: false, ..self },
        }
    }

    /// The memory of plain elements.
    pub fn address(&self) -> *mut u8 {
        self.at as *mut u8
    }

    /// The arguments of a call of the MPI: address, count, type.
    pub fn arguments(&self) -> (usize, c_int, usize) {
        (self.at, self.count, self.datatype)
    }

    /// Whether plain elements have a byte in common with others.
    pub fn overlaps(&self, other: &Elements) -> bool {
        self.is_plain && other.is_plain && self.at < other.at + other.bytes && other.at < self.at + self.bytes
    }

    /// Copies the data to `to`.
    ///
    /// # Errors
    /// That of the MPI, whose error handler knows it.
    ///
    /// # Safety
    /// The program's buffer has these elements, and `to` has room for their data.
    pub unsafe fn pack(&self, mpi: &Mpi, to: *mut u8) -> Result<(), c_int> {
        if self.is_plain {
            // SAFETY: as the caller promises; the place is no memory of the program.
            unsafe { copy(self.address(), to, self.bytes) };
            return Ok(());
        }
        if let Some(short) = self.short {
            let bytes = short.narrow_bytes(self.bytes);
            // SAFETY: as the caller promises; the place is no memory of the program.
            unsafe {
                let integers = std::slice::from_raw_parts(self.address(), bytes);
                short.widen(integers, std::slice::from_raw_parts_mut(to, self.bytes));
            }
            return Ok(());
        }
        let Elements { at, count, datatype, communicator, .. } = *self;
        let mut position = 0;
        // SAFETY: the MPI's function, and what the caller promises. The length fits, as `new` says.
        let status = unsafe {
            (mpi.functions.pack)(at, count, datatype, to, self.bytes as c_int, &mut position, communicator)
        };
        if status == 0 { Ok(()) } else { Err(status) }
    }

    /// Copies data from `from` into the elements.
    ///
    /// # Errors
    /// That of the MPI, whose error handler knows it.
    ///
    /// # Safety
    /// The program's buffer has these elements, and `from` has their data.
    pub unsafe fn unpack(&self, mpi: &Mpi, from: *const u8) -> Result<(), c_int> {
        if self.is_plain {
            // SAFETY: as the caller promises; the place is no memory of the program.
            unsafe { copy(from, self.address(), self.bytes) };
            return Ok(());
        }
        if let Some(short) = self.short {
            let bytes = short.narrow_bytes(self.bytes);
            // SAFETY: as the caller promises; the place is no memory of the program.
            unsafe {
                let integers = std::slice::from_raw_parts_mut(self.address(), bytes);
                short.narrow(std::slice::from_raw_parts(from, self.bytes), integers);
            }
            return Ok(());
        }
        let Elements { at, count, datatype, communicator, .. } = *self;
        let mut position = 0;
        // SAFETY: as for `pack`.
        let status = unsafe {
            (mpi.functions.unpack)(
                from,
                self.bytes as c_int,
                &mut position,
                at,
                count,
                datatype,
                communicator,
            )
        };
        if status == 0 { Ok(()) } else { Err(status) }
    }
}

/// Memory for a copy of data.
#[derive(Debug)]
pub struct Copy {
    short: [u8; SHORT_BYTES],
    long: Vec<u8>,
}

impl Default for Copy {
    fn default() -> Copy {
        Copy { short: [0; SHORT_BYTES], long: Vec::new() }
    }
}

impl Copy {
    /// Room for so many bytes. What was there before is lost.
    pub fn room(&mut self, bytes: usize) -> *mut u8 {
        self.bytes(bytes).as_mut_ptr()
    }

    /// Room for so many bytes, of a new value. They are 0.
    pub fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        if bytes <= SHORT_BYTES {
            return &mut self.short[..bytes];
        }
        self.long = vec![0; bytes];
        &mut self.long
    }
}
