# Progress of a step in one line; sourced by scripts.
#   … | progress LABEL    reads lines "percent text"; draws a bar on a terminal, and prints a line a quarter elsewhere
#   finished LABEL TEXT   replaces the bar by a line that stays

progress_label() { printf '%-10s' "$1"; }

progress() {
  local label=$1 percent text width filled bar quarter=0 begin=$SECONDS
  while read -r percent text; do
    percent=${percent%%.*}
    [[ $percent =~ ^[0-9]+$ ]] && [ "$percent" -le 100 ] || continue
    if [ -t 2 ]; then
      width=$(($(tput cols 2>/dev/null || echo 80) - 50))
      [ "$width" -le 30 ] || width=30
      [ "$width" -ge 5 ] || width=5
      filled=$((width * percent / 100))
      printf -v bar '%*s' "$filled" ''
      printf -v text '%.28s' "$text"
      printf '\r\033[K%s %3d%%|%s%*s| %s' "$(progress_label "$label")" "$percent" "${bar// /█}" $((width - filled)) '' "$text" >&2
    elif [ "$percent" -ge $(((quarter + 1) * 25)) ] && [ "$percent" -lt 100 ]; then
      quarter=$((percent / 25))
      printf '%s %3d %% after %d s\n' "$(progress_label "$label")" "$percent" $((SECONDS - begin)) >&2
    fi
  done
}

finished() {
  [ ! -t 2 ] || printf '\r\033[K' >&2
  printf '%s %s\n' "$(progress_label "$1")" "$2" >&2
}
