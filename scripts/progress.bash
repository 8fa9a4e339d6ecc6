# Progress bars for scripts, which source this file.
#   … | progress LABEL    reads lines "percent text"; draws a bar on a terminal, else prints a line at 25, 50 and 75 %
#   … | build_percent     converts the output of ninja or make to lines "percent text"; apt_percent, apt's status lines
#   finished LABEL TEXT   replaces the bar by a line of text

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

# Ninja prints "[57/153] Building …", make "[ 37%] Building …".
build_percent() {
  local line
  while read -r line; do
    [[ $line != *'] Re-'* ]] || continue  # Re-checking globbed directories, Re-running CMake
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\]\ (.*) ]]; then
      echo "$((100 * BASH_REMATCH[1] / BASH_REMATCH[2])) ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} files"
    elif [[ $line =~ ^\[\ *([0-9]+)%\] ]]; then
      echo "${BASH_REMATCH[1]}"
    fi
  done
}

# Lines "dlstatus:3:41.2:Retrieving …" (the first half of the bar) and "pmstatus:g++:57.1:Unpacking …" (the second).
apt_percent() {
  local kind share text
  while IFS=: read -r kind _ share text; do
    case $kind in
      dlstatus) echo "$((${share%%.*} / 2)) $text" ;;
      pmstatus) echo "$((50 + ${share%%.*} / 2)) $text" ;;
    esac
  done
}
