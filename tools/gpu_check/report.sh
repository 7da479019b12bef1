# Of tools/gpu-check: rows, their limits, and what is kept of them whatever happens.

limit_of_archive=$((16 << 20))
keep=$work/$name # what goes into the archive
mkdir -p "$keep"/{logs,profiles,plans,runs}
# Kernels and choices of algorithms are kept apart from the user's, so that a first check has none, and travel with the
# results: a check with the same folder goes on from there.
if [ -z "${GPTC_CACHE-}" ]; then
  export GPTC_CACHE=$work/cache
  mkdir -m 700 "$GPTC_CACHE"
  for old in "$dir"/gpu-check*.tar.gz; do
    [ -f "$old" ] || continue
    tar -C "$GPTC_CACHE" --no-same-owner --strip-components=2 --wildcards -xzf "$old" '*/cache/*' 2>/dev/null
  done
fi

version=$("$bin/gptc" --version)
started=$SECONDS half_started=$SECONDS
begin_half() { half_started=$SECONDS; }
# Seconds that rows may still take: the last ones are for ending what hangs, and for the archive.
left() { echo $((budget - 8 - (SECONDS - half_started))); }

# A text as a JSON string; of bytes that may be no UTF-8 what is ASCII.
json() {
  local s=${1//\\/\\\\}
  s=${s//\"/\\\"}
  s=${s//$'\n'/\\n}
  s=${s//$'\t'/\\t}
  printf '"%s"' "$(LC_ALL=C tr -cd '\040-\176' <<<"$s")"
}

rows=() failed=0 missed=0 late=0 state=running device=''
# row NAME pass|fail|missed|skipped SECONDS TEXT [MORE FOR THE JSON]
row() {
  printf '%-28s %-8s %5ss  %s\n' "$1" "$2" "$3" "${4%%$'\n'*}"
  rows+=("{\"check\": $(json "$1"), \"result\": $(json "$2"), \"seconds\": $3, \"text\": $(json "$4")${5-}}")
  [ "$2" != fail ] || failed=$((failed + 1))
  [ "$2" != missed ] || missed=$((missed + 1))
  write_results
}

# The table as JSON, and the archive without kernels, as they are now. Whoever reads them sees one state or the next.
write_results() {
  {
    printf '{"date": %s, "version": %s, "device": %s, "halves": [%s], "state": %s, "seconds": %d, "failed": %d,
 "missed": %d, "doctor": ' \
      "$(json "$(date -u +%FT%TZ)")" "$(json "$version")" "$(json "$device")" \
      "$(printf '"%s", ' "${halves[@]}" | sed 's/, $//')" "$(json "$state")" $((SECONDS - started)) "$failed" "$missed"
    if [ -s "$work/doctor.json" ]; then cat "$work/doctor.json"; else printf null; fi
    printf ',\n "checks": [\n  '
    local first=true r
    for r in "${rows[@]}"; do $first || printf ',\n  '; first=false; printf '%s' "$r"; done
    printf '\n]}\n'
  } >"$keep/$name.json"
  cp "$keep/$name.json" "$dir/.$name.json.new" && mv "$dir/.$name.json.new" "$dir/$name.json"
  pack
}

# Packs what is kept; where that is too much, without kernels, and then with less and less of the longest files.
pack() {
  local plan longest new=$dir/.$name.tar.gz.new
  for plan in "$work"/plan-*/; do
    plan=${plan%/}
    [ -f "$plan/schedules.json" ] || continue
    mkdir -p "$keep/plans/${plan##*/plan-}"
    cp "$plan/schedules.json" "$plan/manifest.json" "$keep/plans/${plan##*/plan-}/"
  done
  for plan in "$work"/out-*/; do
    plan=${plan%/}
    [ -f "$plan/log.jsonl" ] && cp "$plan/log.jsonl" "$keep/runs/${plan##*/out-}.jsonl"
  done
  while tar -C "$work" -cf - "$name" | gzip -5 >"$new" && [ "$(stat -c %s "$new")" -gt $limit_of_archive ]; do
    if [ -d "$keep/cache" ]; then rm -rf "$keep/cache"; continue; fi
    longest=$(find "$keep" -type f -printf '%s %p\n' | sort -rn | head -n 1 | cut -d ' ' -f 2-)
    { echo "(only the end of it)"; tail -c $(($(stat -c %s "$longest") / 4)) "$longest"; } >"$work/shorter"
    mv "$work/shorter" "$longest"
  done
  mv "$new" "$dir/$name.tar.gz"
}

# figure VALUE AIM UNIT TEXT: what a check has measured, and how much it is to be at least; - where there is no aim.
figure() {
  echo "$1 $2 $3" >"$work/figure"
  if [ "$2" = - ]; then echo "$4"; else echo "$4 (aim: at least $2 $3)"; fi
}

# Ends a group of processes, and waits until none of it is left: what it held of the GPU is free then.
end_group() {
  local turn
  kill -KILL -- "-$1" 2>/dev/null
  for turn in {1..50}; do
    kill -0 -- "-$1" 2>/dev/null || return
    sleep 0.1
  done
}

running='' timer='' running_name='' log=''
log_name() { tr -c 'A-Za-z0-9.\n' '-' <<<"$1" | sed -E 's/-+/-/g; s/-$//'; }

# check NAME LIMIT COMMAND...: runs it, at most LIMIT seconds and what is left of the half. The command prints what is
# to be said in its last line; it answers 0, 77 where it had to be left out, or anything else where it failed.
check() {
  local row_name=$1 limit=$2 begin=$SECONDS code text value aim unit more
  shift 2
  [[ $row_name =~ $only ]] || return 0
  rm -f "$work/figure"
  [ "$limit" -le "$(left)" ] || limit=$(left)
  if [ "$limit" -lt 5 ]; then late=$((late + 1)); row "$row_name" skipped 0 "no time is left of $budget s"; return; fi
  # What it prints is beside the results while it runs, for whoever ends this program by force.
  log=$dir/$name.running.log running_name=$row_name
  # A group of its own, so that nothing which it started outlives it.
  set -m
  ( "$@" ) >"$log" 2>&1 &
  running=$!
  ( sleep "$limit"; kill -TERM -- "-$running" ) >/dev/null 2>&1 &
  timer=$!
  set +m
  wait "$running"; code=$?
  kill -KILL -- "-$timer" 2>/dev/null; wait "$timer" 2>/dev/null
  # Programs that were told to end have a moment to do so: gptrun saves what it can.
  if [ $code -eq 143 ]; then sleep 2; fi
  end_group "$running"
  running=''
  keep_log
  more=", \"log\": $(json "logs/$(log_name "$row_name").log")"
  log=$keep/logs/$(log_name "$row_name").log
  text=$(tail -n 1 "$log" | LC_ALL=C cut -c 1-1000)
  case $code in
    0)
      if [ -s "$work/figure" ] && ! grep -qE '^[0-9]+(\.[0-9]+)? ' "$work/figure"; then
        row "$row_name" fail $((SECONDS - begin)) "no figure: $text" "$more"
        return
      fi
      if [ ! -s "$work/figure" ]; then row "$row_name" pass $((SECONDS - begin)) "$text" "$more"; return; fi
      read -r value aim unit <"$work/figure"
      local result=pass
      more+=", \"value\": $value, \"unit\": $(json "$unit")"
      if [ "$aim" != - ]; then
        more+=", \"aim\": $aim"
        [[ $device != *H200* ]] || ! awk "BEGIN {exit !($value < $aim)}" || result=missed
      fi
      row "$row_name" $result $((SECONDS - begin)) "$text" "$more"
      ;;
    77) row "$row_name" skipped $((SECONDS - begin)) "$text" "$more" ;;
    *)
      text=$(tail -n 30 "$log" | LC_ALL=C cut -c 1-1000)
      if [ $code -eq 143 ] || [ $code -eq 137 ]; then text="took longer than $limit s"$'\n'$text; fi
      row "$row_name" fail $((SECONDS - begin)) "$text" "$more"
      tail -n 30 "$log" | LC_ALL=C cut -c 1-1000 | sed 's/^/    /'
      ;;
  esac
}

# The end of a log holds what was found; a long one keeps its beginning, too.
keep_log() {
  local to
  to=$keep/logs/$(log_name "$running_name").log
  if [ "$(stat -c %s "$log")" -le $((4 << 20)) ]; then mv "$log" "$to"; return; fi
  { head -c $((1 << 20)) "$log"; printf '\n(...)\n'; tail -c $((3 << 20)) "$log"; } >"$to"
  rm -f "$log"
}

finish() {
  state=${1-complete}
  if [ "$GPTC_CACHE" = "$work/cache" ]; then
    cp -r "$GPTC_CACHE" "$keep/cache"
    rm -f "$keep/cache/tuning.key" # a secret, and of no use elsewhere
  fi
  write_results
  awk -v dir="$dir/" -v name="$name" -v bytes="$(stat -c %s "$dir/$name.tar.gz")" -v seconds=$((SECONDS - started)) \
    'BEGIN {printf "written to %s after %d s: %s.json, %s.tar.gz (%.2f MB)\n", dir, seconds, name, name, bytes / 1e6}'
}

# Whoever is told to end writes what there is. A subshell that is told so before it has let go of our traps does not.
at_exit() {
  [ "$BASHPID" = $$ ] || return 0
  if [ -n "$running" ]; then
    kill -KILL -- "-$timer" 2>/dev/null
    end_group "$running"
    keep_log
    row "$running_name" fail 0 "interrupted" ", \"log\": $(json "logs/$(log_name "$running_name").log")"
  fi
  [ "$state" != running ] || finish interrupted
  rm -rf "$work"
}
trap at_exit EXIT
trap 'exit 130' INT TERM HUP
