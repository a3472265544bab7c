//! The text of a policy, start values and the errors that name the numbers.

use weir_ir::graph::{Aggregate, Normalise, Pooling};

use super::*;

fn rows(text: &str, context: u32) -> Result<(u32, u32, u32, u32), String> {
    let rows = KvOptions::parse(text)
        .and_then(|options| options.rows(context, &[2]))
        .map(|mut rows| rows.remove(0))
        .map_err(|error| error.to_string())?;
    assert!(rows.rows() <= context);
    Ok((rows.sinks, rows.selected, rows.recent, rows.observed))
}

#[test]
fn start_values() {
    // C = max(1024, 131072 / 4) = 32768, S = 32, R = C / 8 = 4096, w = 16.
    assert_eq!(rows("snapstream", 131_072), Ok((32, 28_640, 4096, 16)));
    // C = 1024, R = min(512, 256).
    assert_eq!(rows("snapstream", 1024), Ok((32, 736, 256, 16)));
    assert_eq!(rows("snapstream", 320), Ok((32, 208, 80, 16)));
    assert_eq!(rows("stream", 4096), Ok((32, 0, 992, 0)));
    assert_eq!(rows("snapkv", 4096), Ok((0, 992, 32, 32)));
    assert_eq!(rows("random", 4096), Ok((32, 736, 256, 0)));
    assert_eq!(rows("full", 4096), Ok((0, 0, 4096, 0)));
}

#[test]
fn given_values() {
    let text = "snapstream,rows=1024,sinks=4,recent=256,window=32,pool=5,agg=mean,mode=elastic";
    assert_eq!(rows(text, 4096), Ok((4, 764, 256, 32)));
    assert_eq!(rows("snapstream,rows=9999", 64), rows("snapstream,rows=64", 64));
    assert_eq!(rows("stream,sinks=4,recent=60", 4096), Ok((4, 0, 60, 0)));
    assert_eq!(rows("stream,rows=64,sinks=4", 4096), Ok((4, 0, 60, 0)));
    assert_eq!(rows("snapkv,rows=64,recent=16,window=8", 4096), Ok((0, 48, 16, 8)));
    assert_eq!(rows("random,rows=64,sinks=4,recent=16,seed=3", 4096), Ok((4, 44, 16, 0)));
}

#[test]
fn a_slot_has_room_beside_its_prompt_up_to_a_limit() {
    let growth = |text: &str| {
        let rows = KvOptions::parse(text).unwrap().rows(4096, &[2]).unwrap().remove(0);
        rows.check().unwrap();
        (rows.prompt_rows(), rows.rows())
    };
    assert_eq!(growth("snapkv,rows=64"), (64, 4096));
    assert_eq!(growth("snapkv,rows=64,limit=100"), (64, 100));
    assert_eq!(growth("snapstream,rows=64"), (64, 64));
    assert_eq!(growth("snapstream,rows=64,reselect=16"), (64, 80));
    assert_eq!(growth("snapstream,rows=4090,reselect=16"), (4090, 4096));
    // A sequence that fits needs no other rows.
    assert_eq!(growth("snapstream,rows=4096,reselect=16"), (4096, 4096));
}

#[test]
fn candidates_are_compared_where_rows_are_selected_anew() {
    let redundancy = |text: &str, context: u32| {
        let rows = KvOptions::parse(text).unwrap().rows(context, &[1])?.remove(0);
        rows.check().unwrap();
        Ok::<_, KvError>((rows.redundancy, rows.reselect))
    };
    let text = "snapstream,rows=64,reselect=16,redundancy=90";
    assert_eq!(redundancy(text, 4096), Ok((90, true)));
    // A sequence that fits is never selected from.
    assert_eq!(redundancy(text, 64), Ok((0, false)));
    // 8 and 24 of the rows are no candidates; 128 and the next one are.
    let text = |rows: u32| {
        format!("snapstream,rows={rows},sinks=8,recent=24,window=8,reselect=128,redundancy=50")
    };
    let context = 1 << 20;
    assert_eq!(redundancy(&text(8095), context), Ok((50, true)));
    let error = redundancy(&text(8096), context).unwrap_err().to_string();
    assert!(error.starts_with("redundancy= compares 8193 candidates"), "{error}");
    let kv = KvOptions::parse(&format!("{},budget=8000/8200", text(8100))).unwrap();
    assert!(kv.rows(context, &[1, 1]).is_err());
}

/// A reservoir takes its rows from the ring, or from what is selected if the ring's are given.
#[test]
fn a_reservoir_lies_within_the_rows() {
    let parts = |text: &str| {
        let rows = KvOptions::parse(text).unwrap().rows(4096, &[2]).unwrap().remove(0);
        rows.check().unwrap();
        (rows.sinks, rows.selected, rows.recent, rows.reservoir, rows.rows(), rows.prompt_rows())
    };
    assert_eq!(parts("snapstream,rows=1024"), (32, 736, 256, 0, 1024, 1024));
    assert_eq!(parts("snapstream,rows=1024,reservoir=64"), (32, 736, 192, 64, 1024, 960));
    // Enough are left to observe by.
    assert_eq!(parts("snapstream,rows=1024,reservoir=250"), (32, 726, 16, 250, 1024, 774));
    let given = "snapstream,rows=1024,recent=256,reservoir=64";
    assert_eq!(parts(given), (32, 672, 256, 64, 1024, 960));
    assert_eq!(parts("stream,rows=1024,reservoir=64"), (32, 0, 928, 64, 1024, 960));
    assert_eq!(parts("stream,recent=60,sinks=4,reservoir=8"), (4, 0, 60, 8, 72, 64));
    let own = KvOptions::parse("snapstream,sinks=8,recent=24,reservoir=8,budget=40/90").unwrap();
    let own: Vec<u32> = own.rows(4096, &[2; 2]).unwrap().iter().map(|rows| rows.rows()).collect();
    assert_eq!(own, [40, 90]);
}

/// Guesses have rows of their own, the next token's among them; a full cache needs none.
#[test]
fn guesses_lie_beside_the_rows() {
    let rows = |text: &str| {
        let rows = KvOptions::parse(text).unwrap().rows(4096, &[2]).unwrap().remove(0);
        rows.check().unwrap();
        (rows.prompt_rows(), rows.in_flight, rows.rows())
    };
    assert_eq!(rows("snapstream,rows=64,draft=4"), (64, 5, 69));
    assert_eq!(rows("stream,rows=64,draft=1"), (64, 2, 66));
    assert_eq!(rows("snapkv,rows=64,limit=80,draft=3"), (64, 4, 84));
    assert_eq!(rows("random,rows=64,draft=3"), (64, 4, 68));
    assert_eq!(rows("full,draft=4"), (4096, 0, 4096));
    let kv = KvOptions::parse("snapstream,rows=64").unwrap();
    assert_eq!(kv.in_flight(), 0);
    assert_eq!(kv.with_draft(4).with_draft(2).in_flight(), 5);
    // A ring for a window has room for a step already, unless it never turns.
    let window = window_rows(8, 6, 5, 4096);
    assert_eq!((window.rows(), window.in_flight), (14, 5));
    let window = window_rows(8, 6, 5, 14);
    assert_eq!((window.rows(), window.in_flight), (14, 0));
}

#[test]
fn scores_are_made_as_asked() {
    let text = "snapstream,pooling=max,agg=defensive,normalise=candidates";
    let rows = KvOptions::parse(text).unwrap().rows(4096, &[2]).unwrap().remove(0);
    let Scoring { aggregate, normalise, pooling } = rows.scoring;
    assert_eq!(aggregate, Aggregate::Defensive);
    assert_eq!((normalise, pooling), (Normalise::Candidates, Pooling::Max));
}

#[test]
fn second_queries_choose_a_quarter_unless_told() {
    let second = |text: &str| {
        let rows = KvOptions::parse(text).unwrap().rows(4096, &[2]).unwrap().remove(0);
        rows.check().unwrap();
        (rows.second, rows.second_share)
    };
    assert_eq!(second("snapstream"), (64, 25));
    assert_eq!(second("snapstream,second_share=50"), (64, 50));
    assert_eq!(second("snapstream,second=0"), (0, 0));
    assert_eq!(second("snapstream,second=7"), (7, 25));
    assert_eq!(second("snapkv"), (0, 0));
    assert_eq!(second("snapkv,second=9,second_share=100"), (9, 100));
    // Where nothing is selected none are asked unless told.
    assert_eq!(second("snapstream,rows=64,sinks=8,recent=56"), (0, 0));
    assert_eq!(second("snapstream,rows=64,sinks=8,recent=56,second=9"), (9, 25));
}

#[test]
fn every_context_has_start_values() {
    for context in 1..3000 {
        for text in ["full", "stream", "snapstream", "snapkv", "random"] {
            let (_, _, recent, observed) = rows(text, context).expect(text);
            assert!(recent >= 1 && observed <= recent);
        }
    }
}

#[test]
fn errors_name_the_place() {
    for (text, wanted) in [
        ("", "unknown policy \"\"; there are full, stream, snapstream, snapkv, random"),
        ("h2o", "unknown policy \"h2o\"; there are full, stream, snapstream, snapkv, random"),
        ("full,rows=3", "policy full has no option \"rows\"; it has draft"),
        (
            "stream,pool=3",
            "policy stream has no option \"pool\"; it has rows, sinks, recent, reservoir, seed, \
             draft",
        ),
        (
            "snapkv,reservoir=3",
            "policy snapkv has no option \"reservoir\"; it has rows, sinks, \
            recent, window, second, second_share, pool, pooling, agg, normalise, limit, draft, budget",
        ),
        (
            "stream,rows=64,reservoir=8,draft=3",
            "draft= and reservoir= exclude each other: a token that was guessed wrong is taken back, \
             but not that its rows move to the reservoir",
        ),
        (
            "snapstream,rows=64,recent=16,reselect=9,draft=3",
            "draft= and reselect= exclude each other: a token that was guessed wrong is taken back, \
             but not that rows are selected anew by it",
        ),
        (
            "snapstream,rows=64,redundancy=90",
            "redundancy= counts where rows are selected anew only: it needs reselect=",
        ),
        (
            "snapstream,rows=64,reselect=9,redundancy=0",
            "option \"redundancy\" takes a percentage from 1 to 100, not \"0\"",
        ),
        (
            "snapstream,rows=64,reselect=9,redundancy=101",
            "option \"redundancy\" takes a percentage from 1 to 100, not \"101\"",
        ),
        (
            "snapkv,second_share=30",
            "second_share= is of the rows that second queries choose: it needs second=",
        ),
        (
            "snapstream,second=0,second_share=30",
            "second_share= is of the rows that second queries choose: it needs second=",
        ),
        (
            "snapstream,second=9,second_share=0",
            "option \"second_share\" takes a percentage from 1 to 100, not \"0\"",
        ),
        ("snapstream,second=x", "option \"second\" takes a number, not \"x\""),
        (
            "stream,second=9",
            "policy stream has no option \"second\"; it has rows, sinks, recent, reservoir, seed, \
             draft",
        ),
        ("stream,draft=0", "option \"draft\" takes a number of at least 1, not \"0\""),
        ("stream,reservoir=0", "option \"reservoir\" takes a number of at least 1, not \"0\""),
        ("stream,seed=4", "policy stream draws lots for a reservoir only: seed= needs reservoir="),
        (
            "snapstream,rows=64,recent=32,reservoir=4,reselect=16",
            "reselect= and reservoir= exclude each other: rows of a reservoir have lost the order of \
             their positions",
        ),
        (
            "snapstream,rows=64,sinks=8,recent=40,reservoir=17",
            "8 sinks, 40 recent rows and a reservoir of 17 do not fit into 64 rows (context 1024): \
             rows - sinks - recent - reservoir must not be negative",
        ),
        (
            "stream,rows=64,sinks=8,recent=40,reservoir=17",
            "stream keeps sinks + recent + reservoir = rows, but 8 + 40 + 17 is not 64 (context \
             1024) with at least one recent row",
        ),
        ("stream,rows=3,rows=4", "option \"rows\" is given twice"),
        ("stream,rows=x", "option \"rows\" takes a number of at least 1, not \"x\""),
        ("snapstream,pool=4", "option \"pool\" takes an odd number, not \"4\""),
        ("snapstream,agg=most", "option \"agg\" takes mean, max or defensive, not \"most\""),
        ("snapstream,normalise=", "option \"normalise\" takes all or candidates, not \"\""),
        ("snapkv,pooling=5", "option \"pooling\" takes average, max or reference, not \"5\""),
        (
            "snapkv,rows=64,limit=63",
            "a slot's limit of 63 rows is less than the 64 that are kept of a prompt",
        ),
        (
            "random,window=8",
            "policy random has no option \"window\"; it has rows, sinks, recent, mode, seed, \
             draft, budget",
        ),
        ("snapstream,mode=fast", "option \"mode\" takes elastic or static, not \"fast\""),
        (
            "snapstream,rows=64,sinks=40,recent=40",
            "40 sinks and 40 recent rows do not fit into 64 rows (context 1024): rows - sinks - \
             recent must not be negative",
        ),
        (
            "snapstream,recent=8,window=9",
            "the observed window of 9 queries must lie within the 8 recent rows",
        ),
    ] {
        assert_eq!(rows(text, 1024), Err(wanted.to_owned()), "{text}");
    }
}

#[test]
fn text_round_trips() {
    for text in [
        "full",
        "stream,rows=8,sinks=2",
        "snapstream,rows=64,window=8,mode=static",
        "snapstream,rows=64,pooling=reference,agg=max,normalise=candidates",
        "snapkv,rows=64,limit=128",
        "snapstream,rows=64,window=8,second=64",
        "snapkv,rows=64,second=64,second_share=40,pool=9",
        "random,rows=64,seed=9",
        "stream,rows=8,reservoir=3",
        "snapstream,rows=64,reservoir=8,seed=9",
        "snapstream,rows=64,reselect=128",
        "snapstream,rows=64,reselect=128,redundancy=90",
        "snapstream,rows=64,draft=4",
        "full,draft=4",
    ] {
        let options = KvOptions::parse(text).expect(text);
        assert_eq!(options.to_string(), text);
        assert_eq!(KvOptions::parse(&options.to_string()), Ok(options));
    }
}

#[test]
fn layers_share_what_is_selected() {
    let rows = |text: &str, context: u32, layers: usize| {
        let options = KvOptions::parse(text).unwrap();
        assert_eq!(KvOptions::parse(&options.to_string()).unwrap(), options);
        options.rows(context, &vec![2; layers]).map(|rows| {
            rows.iter().map(|rows| (rows.sinks, rows.selected, rows.recent)).collect::<Vec<_>>()
        })
    };
    let base = "snapstream,rows=132,sinks=8,recent=24";
    let uniform = rows(base, 4096, 3).unwrap();
    assert_eq!(uniform, [(8, 100, 24); 3]);
    let pyramid = rows(&format!("{base},budget=pyramid"), 4096, 3).unwrap();
    assert_eq!(pyramid, [(8, 195, 24), (8, 100, 24), (8, 5, 24)]);
    let own = rows(&format!("{base},budget=40/32/90"), 4096, 3).unwrap();
    assert_eq!(own, [(8, 8, 24), (8, 0, 24), (8, 58, 24)]);
    // No layer gets more rows than a sequence has.
    let short = rows(&format!("{base},budget=pyramid"), 140, 3).unwrap();
    assert_eq!(short, [(8, 108, 24), (8, 100, 24), (8, 5, 24)]);
    for (budget, message) in [
        ("40/32", "the budget has rows for 2 layers, and 3 have no window of their own"),
        (
            "40/31/40",
            "8 sinks and 24 recent rows do not fit into the 31 rows that the budget gives layer 1",
        ),
    ] {
        let error = rows(&format!("{base},budget={budget}"), 4096, 3).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    for (budget, message) in [
        (
            "40:41/50/60:70:80",
            "the budget has rows for 3 heads of layer 2, which has 2 key/value heads",
        ),
        (
            "40/50/31:60",
            "8 sinks and 24 recent rows do not fit into the 31 rows that the budget gives layer 2",
        ),
    ] {
        let error = rows(&format!("{base},budget={budget}"), 4096, 3).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let error = rows("snapstream,rows=32,sinks=8,recent=24,budget=pyramid", 99, 2).unwrap_err();
    assert!(error.to_string().contains("selects no rows"), "{error}");
    assert!(KvOptions::parse("stream,budget=pyramid").is_err());
}

#[test]
fn heads_have_rows_of_their_own() {
    let rows = |text: &str, context: u32| {
        let options = KvOptions::parse(text).unwrap();
        assert_eq!(KvOptions::parse(&options.to_string()).unwrap(), options);
        options.rows(context, &[2; 3]).map(|rows| {
            rows.into_iter().map(|rows| (rows.selected, rows.by_head)).collect::<Vec<_>>()
        })
    };
    let base = "snapstream,rows=132,sinks=8,recent=24";
    let own = rows(&format!("{base},budget=40:90/50/60:60"), 4096).unwrap();
    assert_eq!(own, [(8, vec![8, 58]), (18, vec![]), (28, vec![])]);
    // No head gets more rows than a sequence has.
    let short = rows(&format!("{base},budget=400:40/400:300/32:33"), 140).unwrap();
    assert_eq!(short, [(8, vec![108, 8]), (108, vec![]), (0, vec![0, 1])]);
    for other in ["reservoir=3", "reselect=9"] {
        let error = rows(&format!("{base},{other},budget=80:90/60/60"), 4096).unwrap_err();
        assert!(error.to_string().contains("exclude each other"), "{error}");
    }
}
