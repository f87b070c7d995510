-- Rights: nothing for PUBLIC. sql/roles.sql grants the four optional roles their share.

revoke all on schema dever from public;
revoke all on all tables in schema dever from public;
revoke all on all sequences in schema dever from public;
revoke all on all functions in schema dever from public;
