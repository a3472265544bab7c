#!/bin/sh
# The tables of docs/evaluation.md on the kept model, by `weir eval`.
#
#   measure.sh WEIR TEXT families FORMAT [FAMILY...]   3,000 questions of each family, f32 beside FORMAT
#   measure.sh WEIR TEXT options                       every option of snapstream, and the policies beside it
#
# WEIR is the program, TEXT the text that facts are hidden in. EVAL holds further options, such as --json.
# On two processors a family takes 10 to 30 minutes with two formats, the options 20.
set -eu

[ $# -ge 3 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
weir=$1 text=$2 table=$3
shift 3
model=$(dirname "$0")/../../models/recall/onnx

# Lists and many keys in words of their own: SEED FAMILY DOCUMENTS QUESTIONS TOKENS QUESTION
listed() {
  echo "families=$2&documents=$3&questions=$4&max_tokens=$5&seed=$1&key=pair&value=number&noun=code\
&statement=The%20{a}%20of%20{k}%20is%20{v}.&question=$6%20The%20{a}%20of%20{k}%20is"
}

# FAMILY DOCUMENTS QUESTIONS SEED
task() {
  printf '%s' "needle:$text?wording=recall&match=contains&length=7900&"
  case $1 in
    single) echo "families=single&documents=$2&questions=$3&max_tokens=24&seed=$4" ;;
    passkey) echo "families=passkey&documents=$2&questions=$3&max_tokens=16&seed=$4" ;;
    trace) echo "families=trace&documents=$2&questions=$3&seed=$4" ;;
    multikey) listed "$4" multikey "$2" "$3" 24 'What%20is%20the%20{a}%20of%20{k}%3F' ;;
    multivalue) listed "$4" multivalue "$2" "$3" 96 'List%20every%20{a}%20of%20{k}.' ;;
    *) echo "no family $1" >&2; exit 2 ;;
  esac
}

measure() {
  # EVAL is options, to be divided at spaces.
  # shellcheck disable=SC2086
  "$weir" eval "$model" --context 8192 --slots 24 --kv-dtype f32 ${EVAL:-} "$@"
}

case $table in
  families)
    format=${1:?"families wants a format"}
    shift
    [ $# -gt 0 ] || set -- single multikey passkey multivalue trace
    for family; do
      case $family in
        single | passkey) of=$(task "$family" 375 8 31) ;;
        trace) of=$(task trace 188 16 71) ;;
        *) of=$(task "$family" 150 20 21) ;;
      esac
      measure --kv-dtype "$format" --kv snapstream,rows=2048 --kv snapstream,rows=1024 "$of"
    done
    ;;
  options)
    for option in '' sinks=4 sinks=64 recent=64 recent=128 window=8 window=32 window=64 \
      pool=5 pool=9 pool=15 pool=31 pool=63 pooling=max normalise=candidates agg=max agg=defensive \
      second=0 second=32 second=128; do
      for rows in 2048 1024; do
        set -- "$@" --kv "snapstream,rows=$rows${option:+,$option}"
      done
    done
    for policy in stream random; do
      set -- "$@" --kv "$policy,rows=2048" --kv "$policy,rows=1024"
    done
    measure "$@" "$(task trace 12 16 91)" "$(task single 24 8 91)" "$(task multikey 10 16 91)" \
      "$(task multivalue 10 16 91)" "$(task passkey 20 8 91)"
    ;;
  *)
    echo "no table $table" >&2
    exit 2
    ;;
esac
