//! Attention state: which rows a layer's cache keeps, and in which number formats.

/// Attention state of one layer, from stage `Cached` on.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheDecl {
    /// Layer that owns it.
    pub layer: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Values of a key row of one head.
    pub key_width: u32,
    /// Values of a value row of one head.
    pub value_width: u32,
    /// Number format of keys and values.
    pub format: CacheFormat,
    /// Number format of the immutable block, the rows below S + K, if it is another one.
    pub block: Option<CacheFormat>,
    /// Sliding window of the attention that reads it, 0 for none.
    pub window: u32,
    /// Policy and rows, from stage `Sparse` on.
    pub layout: Option<CacheRows>,
}

impl CacheDecl {
    /// Whether all keys lie in it turned ([`mod@crate::interpret::turn`]), and queries are turned before
    /// they meet them: where some rows are codes of four bits.
    pub fn turns_keys(&self) -> bool {
        RowFormats { ring: self.format, block: self.block }.turns_keys()
    }

    /// Number formats of rows in the cache and of a prompt that is longer than it. Such a prompt is
    /// computed over rows of the ring's format, so int4 of a cache that drops rows of prompts is the
    /// format of its block, and the block is the whole cache: the prompt's rows are int8 until it ends.
    pub fn row_formats(&self) -> RowFormats {
        let drops_rows = self.layout.as_ref().is_some_and(|rows| rows.policy.has_block());
        match self.format {
            CacheFormat::I4 if drops_rows => {
                RowFormats { ring: CacheFormat::I8, block: Some(CacheFormat::I4) }
            }
            ring => RowFormats { ring, block: self.block },
        }
    }

    /// Rows that have the block's format, the first ones: S + K, or all of them; none if all rows of
    /// cache and prompts have one format.
    pub fn block_rows(&self) -> u32 {
        match &self.layout {
            Some(rows) if self.format == CacheFormat::I4 && rows.policy.has_block() => rows.rows(),
            Some(rows) if self.block.is_some() => rows.block_rows(),
            _ => 0,
        }
    }
}

crate::attribute::named_enum!(
    /// Number format of keys and values. Rows are rounded when they are written.
    CacheFormat {
        /// Single precision.
        F32 = "f32",
        /// IEEE half precision.
        F16 = "f16",
        /// The upper half of single precision.
        BF16 = "bf16",
        /// Codes of 8 bits and a scale per row and head, and attention in codes.
        I8 = "i8",
        /// The same with codes of 4 bits, which name levels among those of 8.
        I4 = "i4",
    }
);

impl CacheFormat {
    /// Whether rows are codes with a scale, and attention computes with codes.
    pub fn is_coded(self) -> bool {
        matches!(self, CacheFormat::I8 | CacheFormat::I4)
    }

    /// Whether the immutable block may have this format where the ring has another: rows of it are
    /// made from rows of the ring, and read as those are, so it holds less of them.
    pub fn suits_block_of(self, ring: CacheFormat) -> bool {
        match self {
            CacheFormat::I4 => ring != CacheFormat::I4,
            CacheFormat::I8 => !ring.is_coded(),
            _ => false,
        }
    }
}

/// Number formats of the rows of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowFormats {
    /// The ring's, and of all rows where a cache is one ring.
    pub ring: CacheFormat,
    /// The immutable block's, if it is another one.
    pub block: Option<CacheFormat>,
}

impl RowFormats {
    /// Whether any rows are codes of four bits: all keys are turned then.
    pub fn turns_keys(self) -> bool {
        self.ring == CacheFormat::I4 || self.block == Some(CacheFormat::I4)
    }
}

impl From<CacheFormat> for RowFormats {
    fn from(ring: CacheFormat) -> RowFormats {
        RowFormats { ring, block: None }
    }
}

crate::attribute::named_enum!(
    /// How a cache chooses the rows it keeps.
    KvPolicy {
        /// Every row.
        Full = "full",
        /// Sinks and a ring.
        Stream = "stream",
        /// Sinks, rows selected at the end of the prompt, and a ring.
        Snapstream = "snapstream",
        /// The same of a prompt; what is generated is kept beside it until the slot is full.
        Snapkv = "snapkv",
        /// As `Snapstream`, with rows selected by lot.
        Random = "random",
        /// The ring of a sliding-window layer: the window and the rows of one step.
        Window = "window",
    }
);

impl KvPolicy {
    /// Whether rows below S + K are an immutable block, in front of a ring.
    pub fn has_block(self) -> bool {
        !matches!(self, KvPolicy::Full | KvPolicy::Window)
    }
}

crate::attribute::named_enum!(
    /// How the attention that a row gets from the observed queries and the heads of a group becomes
    /// one number.
    Aggregate {
        /// The mean over queries, then over heads.
        Mean = "mean",
        /// The largest over queries, then over heads.
        Max = "max",
        /// The largest over queries, at least the head's mean over the candidates; then the largest
        /// over heads (DefensiveKV, ICLR 2026).
        Defensive = "defensive",
    }
);

crate::attribute::named_enum!(
    /// What an observed query's attention sums to one over.
    Normalise {
        /// All keys up to it, as attention itself.
        All = "all",
        /// The candidates, as the equation of the SnapStream paper states.
        Candidates = "candidates",
    }
);

crate::attribute::named_enum!(
    /// How neighbours are pooled.
    Pooling {
        /// Their average, inside the candidates only.
        Average = "average",
        /// Their largest, inside the candidates only.
        Max = "max",
        /// Their average over everything in front of the observed queries, with zeros beyond both
        /// ends, as SnapKV's code pools: sinks weigh on their neighbours.
        Reference = "reference",
    }
);

/// How candidates are scored (section 4.2 and 4.3 of the method's document).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scoring {
    /// From queries and heads to a number.
    pub aggregate: Aggregate,
    /// What attention is relative to.
    pub normalise: Normalise,
    /// From neighbours to a score.
    pub pooling: Pooling,
}

impl Default for Scoring {
    fn default() -> Scoring {
        Scoring { aggregate: Aggregate::Mean, normalise: Normalise::All, pooling: Pooling::Average }
    }
}

/// Policy and rows of a cache; the letters are those of the method's document.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheRows {
    /// Policy.
    pub policy: KvPolicy,
    /// Whether selected rows that a prompt does not need become ring rows.
    pub elastic: bool,
    /// S.
    pub sinks: u32,
    /// K; where heads have different numbers of them the least.
    pub selected: u32,
    /// K of each key/value head, where they differ; empty where they do not.
    pub by_head: Vec<u32>,
    /// R.
    pub recent: u32,
    /// Rows beside these that no prompt fills: room for generated ones.
    pub growth: u32,
    /// D: further rows of the ring, for tokens that are guessed and may be taken back. No query reads
    /// as many rows of the ring as it has.
    pub in_flight: u32,
    /// N: further rows, which hold a sample of those that have left the ring.
    pub reservoir: u32,
    /// Whether rows are selected from anew when there is no room left for generated ones.
    pub reselect: bool,
    /// Percent of a candidate's score, then, that its redundancy is, which counts against it; the rest
    /// is what else scores it (1 - λ and λ of R-KV).
    pub redundancy: u32,
    /// w.
    pub observed: u32,
    /// Rows of a prompt, of each key/value head, whose queries are asked beside the last ones: those
    /// near what the last ones attend to ([`crate::interpret::second`]). 0: none.
    pub second: u32,
    /// Percent of the selected rows that are chosen by what these attend to; 0 where there are none.
    pub second_share: u32,
    /// Pooling width.
    pub pool: u32,
    /// How candidates are scored.
    pub scoring: Scoring,
    /// Seed of the lots that are drawn instead of scores, and for the reservoir.
    pub seed: u32,
}

impl CacheRows {
    /// R rows in a ring and no others.
    pub fn ring(policy: KvPolicy, recent: u32) -> CacheRows {
        CacheRows {
            policy,
            elastic: true,
            sinks: 0,
            selected: 0,
            by_head: Vec::new(),
            recent,
            growth: 0,
            in_flight: 0,
            reservoir: 0,
            reselect: false,
            redundancy: 0,
            observed: 0,
            second: 0,
            second_share: 0,
            pool: 1,
            scoring: Scoring::default(),
            seed: 0,
        }
    }

    /// K of a head.
    pub fn selected_of(&self, head: usize) -> u32 {
        self.by_head.get(head).copied().unwrap_or(self.selected)
    }

    /// K of the head with the most.
    pub fn most_selected(&self) -> u32 {
        self.by_head.iter().copied().max().unwrap_or(self.selected)
    }

    /// S + K: rows of the immutable block that every head has.
    pub fn block_rows(&self) -> u32 {
        self.sinks + self.selected
    }

    /// S + K + R: rows that are kept of a prompt.
    pub fn prompt_rows(&self) -> u32 {
        self.sinks + self.selected + self.recent
    }

    /// S + K + R, and the rows beside them: rows of a slot that every head has. Heads of which more rows
    /// are selected have the others behind these.
    pub fn rows(&self) -> u32 {
        self.prompt_rows() + self.growth + self.in_flight + self.reservoir
    }

    /// Whether rows of longer prompts are selected by what queries attend to.
    pub fn observes(&self) -> bool {
        matches!(self.policy, KvPolicy::Snapstream | KvPolicy::Snapkv) && self.most_selected() > 0
    }

    /// Checks the numbers against each other (section 2 of the method's document).
    pub fn check(&self) -> Result<(), String> {
        let parts = [self.selected, self.recent, self.growth, self.in_flight, self.reservoir];
        let total = parts.iter().try_fold(self.sinks, |total, rows| total.checked_add(*rows));
        if total.is_none() {
            return Err("the sum of rows overflows".into());
        }
        if self.recent == 0 {
            return Err("a cache needs at least one recent row".into());
        }
        if self.observed > self.recent {
            let (observed, recent) = (self.observed, self.recent);
            return Err(format!("{observed} observed rows are more than {recent} recent rows"));
        }
        if self.observes() {
            if self.observed == 0 {
                return Err("selection needs observed rows".into());
            }
            if self.pool.is_multiple_of(2) {
                return Err(format!("pooling width {} is even", self.pool));
            }
        }
        if matches!(self.policy, KvPolicy::Stream | KvPolicy::Window) && self.selected > 0 {
            return Err(format!("policy {} selects no rows", self.policy.name()));
        }
        self.check_heads()?;
        if self.policy == KvPolicy::Window && self.sinks > 0 {
            return Err("a window has no sinks".into());
        }
        if self.policy != KvPolicy::Snapkv && !self.reselect && self.growth > 0 {
            return Err(format!("policy {} has no room beside its rows", self.policy.name()));
        }
        let is_snapstream = self.policy == KvPolicy::Snapstream;
        if self.reselect && (!is_snapstream || self.growth == 0 || self.reservoir > 0) {
            let what = "only snapstream with room beside its rows and no reservoir selects anew";
            return Err(what.into());
        }
        if self.redundancy > 100 || (self.redundancy > 0 && !self.reselect) {
            let percent = self.redundancy;
            return Err(format!("redundancy of {percent} % of the scores of rows selected anew"));
        }
        self.check_second()?;
        let has_reservoir = matches!(self.policy, KvPolicy::Stream | KvPolicy::Snapstream);
        if !has_reservoir && self.reservoir > 0 {
            return Err(format!("policy {} has no reservoir", self.policy.name()));
        }
        if self.in_flight > 0 {
            if self.policy == KvPolicy::Full {
                return Err("a full cache overwrites no row: none is needed in flight".into());
            }
            if self.reservoir > 0 || self.reselect {
                let what = "a row in flight may be taken back, but not what it has moved to a \
                            reservoir or had selected anew";
                return Err(what.into());
            }
        }
        Ok(())
    }

    /// Checks the numbers of second queries.
    fn check_second(&self) -> Result<(), String> {
        let CacheRows { second, second_share, .. } = *self;
        if (second > 0) != (1..=100).contains(&second_share) {
            return Err(format!("{second} rows asked again for {second_share} % of the selected"));
        }
        if second > 0 && !matches!(self.policy, KvPolicy::Snapstream | KvPolicy::Snapkv) {
            return Err(format!("policy {} asks no row", self.policy.name()));
        }
        Ok(())
    }

    /// Checks the numbers of rows by head.
    fn check_heads(&self) -> Result<(), String> {
        let Some(least) = self.by_head.iter().min() else { return Ok(()) };
        if *least != self.selected || self.by_head.iter().all(|rows| rows == least) {
            let (selected, by_head) = (self.selected, &self.by_head);
            return Err(format!("selected={selected} is not the least of different {by_head:?}"));
        }
        let room = u32::MAX - (self.sinks + self.recent);
        let beside = [self.growth, self.in_flight]
            .iter()
            .try_fold(room, |room, rows| room.checked_sub(*rows));
        if beside.is_none_or(|room| self.most_selected() > room) {
            return Err("the sum of rows of a head overflows".into());
        }
        if !matches!(self.policy, KvPolicy::Snapstream | KvPolicy::Snapkv | KvPolicy::Random) {
            return Err(format!("policy {} selects no rows by head", self.policy.name()));
        }
        if self.reservoir > 0 || self.reselect {
            let what = "rows by head go neither with a reservoir nor with rows selected anew";
            return Err(what.into());
        }
        Ok(())
    }
}
