//! What Python and Jinja do otherwise than minijinja: tests, arguments by place or name, `strftime`.

use std::time::Duration;

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind};

/// The test `iterable`: whether Python's `iter` takes the value. `none` it does not take, though a loop
/// here does: templates ask so whether there are tools to count.
pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The test `sequence`: whether the value has a length and items, as texts and mappings have. (A list
/// that was sliced or added to is an iterable here.)
pub fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined
            | ValueKind::String
            | ValueKind::Bytes
            | ValueKind::Seq
            | ValueKind::Map
            | ValueKind::Iterable
    )
}

/// Arguments that may be given by place and by name, taken in the order of their places.
pub struct Arguments<'a> {
    function: &'a str,
    positional: &'a [Value],
    named: Kwargs,
}

impl<'a> Arguments<'a> {
    /// The arguments of a call of `function`.
    pub fn new(function: &'a str, arguments: &'a [Value]) -> Result<Arguments<'a>, Error> {
        let (positional, named) = from_args(arguments)?;
        Ok(Arguments { function, positional, named })
    }

    /// The next argument, if it is given and not `none`.
    pub fn take(&mut self, name: &str) -> Result<Option<Value>, Error> {
        let Some((first, rest)) = self.positional.split_first() else {
            return self.named.get(name);
        };
        self.positional = rest;
        if self.named.has(name) {
            return Err(self.error(ErrorKind::TooManyArguments, format!("{name} is given twice")));
        }
        Ok((!first.is_none()).then(|| first.clone()))
    }

    /// Refuses arguments that were not taken.
    pub fn finish(self) -> Result<(), Error> {
        if !self.positional.is_empty() {
            return Err(self.error(ErrorKind::TooManyArguments, "too many arguments".to_owned()));
        }
        self.named.assert_all_used().map_err(|error| {
            let reason = error.detail().unwrap_or("unknown argument").to_owned();
            self.error(error.kind(), reason)
        })
    }

    fn error(&self, kind: ErrorKind, reason: String) -> Error {
        Error::new(kind, format!("{}: {reason}", self.function))
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// The time since 1970-01-01 in UTC, as Python's `strftime` writes it on Linux for `datetime.now()`,
/// which has no zone (`%Z` and `%z` are empty). `-`, `_`, `0` and `^` before a letter are GNU's. Letters
/// that are none are an error: a prompt with `%Q` in it is nobody's wish.
pub fn strftime(format: &str, now: Duration) -> Result<String, Error> {
    let moment = Moment::new(now);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let rest = characters.as_str();
        let Some(letter) = characters.next() else {
            out.push('%');
            break;
        };
        let (flag, letter) = match letter {
            '-' | '_' | '0' | '^' => (Some(letter), characters.next()),
            _ => (None, Some(letter)),
        };
        let field = letter.and_then(|letter| moment.field(letter));
        match (field, flag) {
            (Some(Field::Number(value, width, pad)), flag) => match flag {
                Some('-') => out.push_str(&value.to_string()),
                Some('_') => out.push_str(&format!("{value:width$}")),
                Some('0') => out.push_str(&format!("{value:0width$}")),
                _ if pad == ' ' => out.push_str(&format!("{value:width$}")),
                _ => out.push_str(&format!("{value:0width$}")),
            },
            (Some(Field::Text(text)), Some('^')) => out.push_str(&text.to_uppercase()),
            // Texts are as wide as they are.
            (Some(Field::Text(text)), _) => out.push_str(text),
            (Some(Field::Format(format)), None) => out.push_str(&strftime(format, now)?),
            // What no letter stands for Python copies.
            (None, None) if letter.is_some_and(|letter| !WIDTHS_AND_FORMS.contains(letter)) => {
                out.push('%');
                out.extend(letter);
            }
            (Some(Field::Format(_)) | None, _) => {
                let length = usize::from(flag.is_some()) + letter.map_or(0, char::len_utf8);
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: unknown field \"%{}\"", &rest[..length]),
                ));
            }
        }
    }
    Ok(out)
}

/// What stands in front of a letter in the C library's longer fields, which are not done.
const WIDTHS_AND_FORMS: &str = "123456789#+:EO";

/// What a letter stands for.
enum Field {
    /// A value, its least width, and what fills it.
    Number(u64, usize, char),
    Text(&'static str),
    /// Other letters.
    Format(&'static str),
}

/// A time by the calendar.
struct Moment {
    seconds: u64,
    microsecond: u64,
    year: u64,
    month: u64,
    day: u64,
    /// From 0.
    day_of_year: u64,
    /// From Sunday, which is 0.
    weekday: u64,
}

impl Moment {
    fn new(now: Duration) -> Moment {
        let days = now.as_secs() / 86_400;
        let (year, month, day) = civil_date(days);
        let mut first_day = days - (day - 1);
        while civil_date(first_day).1 > 1 {
            first_day -= civil_date(first_day - 1).2;
        }
        Moment {
            seconds: now.as_secs(),
            microsecond: now.subsec_micros().into(),
            year,
            month,
            day,
            day_of_year: days - first_day,
            // The first was a Thursday.
            weekday: (days + 4) % 7,
        }
    }

    fn field(&self, letter: char) -> Option<Field> {
        let number = |value, width| Field::Number(value, width, '0');
        let blank = |value| Field::Number(value, 2, ' ');
        let hour = self.seconds / 3_600 % 24;
        let hour_of_twelve = (hour + 11) % 12 + 1;
        let (month_name, day_name) = (MONTHS[self.month as usize - 1], DAYS[self.weekday as usize]);
        let day_from_monday = (self.weekday + 6) % 7;
        Some(match letter {
            'Y' => number(self.year, 4),
            'y' => number(self.year % 100, 2),
            'C' => number(self.year / 100, 2),
            'm' => number(self.month, 2),
            'B' => Field::Text(month_name),
            'b' | 'h' => Field::Text(&month_name[..3]),
            'd' => number(self.day, 2),
            'e' => blank(self.day),
            'j' => number(self.day_of_year + 1, 3),
            'A' => Field::Text(day_name),
            'a' => Field::Text(&day_name[..3]),
            'w' => number(self.weekday, 1),
            'u' => number(day_from_monday + 1, 1),
            'U' => number((self.day_of_year + 7 - self.weekday) / 7, 2),
            'W' => number((self.day_of_year + 7 - day_from_monday) / 7, 2),
            'G' => number(self.iso_week().0, 4),
            'g' => number(self.iso_week().0 % 100, 2),
            'V' => number(self.iso_week().1, 2),
            'H' => number(hour, 2),
            'k' => blank(hour),
            'I' => number(hour_of_twelve, 2),
            'l' => blank(hour_of_twelve),
            'M' => number(self.seconds / 60 % 60, 2),
            'S' => number(self.seconds % 60, 2),
            'f' => number(self.microsecond, 6),
            's' => number(self.seconds, 1),
            'p' => Field::Text(if hour < 12 { "AM" } else { "PM" }),
            'P' => Field::Text(if hour < 12 { "am" } else { "pm" }),
            'Z' | 'z' => Field::Text(""),
            'F' => Field::Format("%Y-%m-%d"),
            'T' | 'X' => Field::Format("%H:%M:%S"),
            'R' => Field::Format("%H:%M"),
            'r' => Field::Format("%I:%M:%S %p"),
            'D' | 'x' => Field::Format("%m/%d/%y"),
            'c' => Field::Format("%a %b %e %H:%M:%S %Y"),
            'n' => Field::Text("\n"),
            't' => Field::Text("\t"),
            '%' => Field::Text("%"),
            _ => return None,
        })
    }

    /// The year and the week of ISO 8601: those of the week's Thursday.
    fn iso_week(&self) -> (u64, u64) {
        let days = self.seconds / 86_400;
        let thursday = days + 3 - (self.weekday + 6) % 7;
        let thursday = Moment::new(Duration::from_secs(thursday * 86_400));
        (thursday.year, thursday.day_of_year / 7 + 1)
    }
}

/// Year, month and day of a day since 1970-01-01 (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}
