# One request per line: "SEQ SECONDS BASE64-COMMANDS".  The answer is the output of the
# commands (stdout and stderr), then LF RS "SEQ EXIT-STATUS" LF.  Each request runs in a shell
# of its own which has lib.sh; one that takes too long is killed with its process group (137).
# Emulated serial ports take the time that their speed says.
stty raw -echo 115200
printf '\036ready\n'
while read -r seq secs commands; do
	echo "$commands" | base64 -d > /tmp/.commands
	setsid timeout -s KILL "$secs" /usr/bin/dash -c '. /guest/lib.sh; . /tmp/.commands' \
		</dev/null 2>&1 &
	pid=$!
	wait $pid 2>/dev/null; rc=$?
	[ $rc = 137 ] && kill -9 -$pid 2>/dev/null
	printf '\n\036%s %s\n' "$seq" $rc
done
